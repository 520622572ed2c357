"""Micro-steps: together within a pipeline, in order and one at a time on a rank."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.lockstep import lockstep_micro_steps
from seqplan.plans.views.placement import PlacedPipeline, Placement

RANKS = 5


@st.composite
def steps(draw: st.DrawFn) -> tuple[Placement, list[int]]:
    """Pipelines of any ranks in any order, some of which have no micro-batch."""
    members = draw(
        st.lists(st.lists(st.integers(0, RANKS - 1), min_size=1, unique=True), max_size=6)
    )
    placement = tuple(PlacedPipeline(Scheme(ring=len(ranks)), tuple(ranks)) for ranks in members)
    return placement, [draw(st.integers(0, 3)) for _ in placement]


@settings(max_examples=45)
@given(steps())
def test_ranks_of_a_pipeline_meet(step: tuple[Placement, list[int]]) -> None:
    placement, counts = step
    micro_steps = [lockstep_micro_steps(placement, counts, rank) for rank in range(RANKS)]
    assert len({rank_micro_steps.total for rank_micro_steps in micro_steps}) == 1
    next_micro_steps = [0] * RANKS
    last = 0
    for pipeline, count in zip(placement, counts, strict=True):
        parts = {
            micro_steps[rank].with_work[next_micro_steps[rank] : next_micro_steps[rank] + count]
            for rank in pipeline.ranks
        }
        assert len(parts) == 1
        (part,) = parts
        assert len(part) == count
        for rank in pipeline.ranks:
            next_micro_steps[rank] += count
        last = max([last, *(number + 1 for number in part)])
    for rank, rank_micro_steps in enumerate(micro_steps):
        assert len(rank_micro_steps.with_work) == next_micro_steps[rank]
        assert list(rank_micro_steps.with_work) == sorted(set(rank_micro_steps.with_work))
        assert rank_micro_steps.total == last


def test_a_rank_waits_for_another_of_its_pipeline() -> None:
    """Rank 0 is free in the first micro-step, and its pipeline runs in the second."""
    placement = (PlacedPipeline(Scheme(), (1,)), PlacedPipeline(Scheme(ulysses=2), (0, 1)))
    assert [lockstep_micro_steps(placement, [1, 2], rank) for rank in (0, 1, 2)] == [
        ((1, 2), 3),
        ((0, 1, 2), 3),
        ((), 3),
    ]
