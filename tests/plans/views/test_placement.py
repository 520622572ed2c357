"""Where pipelines run: runs of ranks, and whether reduce-scatters may overlap backward."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_strategies import plans

from seqplan import Plan, Scheme, rank_view
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.placement import (
    PlacedPipeline,
    can_overlap_reduction,
    place_on_ranks,
    rank_runs,
    ranks_of_runs,
)
from seqplan.plans.views.rank_view import place_view, views_json


@given(st.lists(st.integers(0, 40), unique=True))
def test_runs_keep_the_order_of_ranks(ranks: list[int]) -> None:
    runs = rank_runs(ranks)
    assert ranks_of_runs(runs) == tuple(ranks)
    assert all(before[1] != after[0] for before, after in pairwise(runs))


def test_reductions_overlap_in_stages_of_one_and_ranks_of_one_pipeline_only() -> None:
    one, ring, stages = Scheme(), Scheme(ring=2), Scheme(pp=2)
    assert can_overlap_reduction((PlacedPipeline(ring, (0, 1)), PlacedPipeline(one, (2,))))
    assert not can_overlap_reduction((PlacedPipeline(stages, (0, 1)), PlacedPipeline(one, (2,))))
    assert not can_overlap_reduction((PlacedPipeline(ring, (0, 1)), PlacedPipeline(one, (1,))))
    assert can_overlap_reduction(())


@given(plans(), st.data())
def test_views_are_placed_as_their_plan_is(plan: Plan, data: st.DataObject) -> None:
    """One more rank, which is lost, moves the ranks from its number on."""
    world = plan.world_size
    lost = data.draw(st.integers(0, world))

    def move(ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(rank + (rank >= lost) for rank in ranks)

    planned = replace(
        plan,
        world_size=world + 1,
        expert_parallel=1,
        pipelines=tuple(replace(p, ranks=move(p.ranks)) for p in plan.pipelines),
        idle_ranks=tuple(sorted((*move(plan.idle_ranks), lost))),
        groups=tuple(map(move, plan.groups)),
        lost_ranks=(lost,),
    )
    placed = place_on_ranks(planned, world)
    written = views_json(planned, digest="sha256:d")
    for number, rank in enumerate(planned.ranks_left):
        view = decode_view(json.loads(written[rank]))
        assert view == rank_view(planned, rank, digest="sha256:d")
        assert place_view(view, world) == rank_view(placed, number, digest="sha256:d")
    with pytest.raises(ValueError, match=f"of which {world} are left, the job has {world + 2}"):
        place_view(view, world + 2)
