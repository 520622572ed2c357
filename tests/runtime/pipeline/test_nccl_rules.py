"""Whatever strategies stand side by side, no two ranks wait for each other for ever."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from nccl_rules import Trace, recorded, replay
from ranks import run_ranks
from staged_runs import CONFIG, Case, SequenceParallelCase, sequence_parallel, staged

from seqplan.plans.views.placement import can_overlap_reduction, placement_of
from seqplan.runtime.pipeline import prepare

CASES = {"messages": Case(8, 182, steps=2), "groups": Case(8, 65, steps=2, by_messages=False)}
EACH = "reductions after each micro-batch"
EACH_CASE = SequenceParallelCase(
    8, 19, config=replace(CONFIG, layers=2), steps=2, reduce="micro-batch"
)
OVERLAPPED = "reduce-scatters during backward, for any plan"


def traces_of(rank: int, world_size: int) -> dict[str, Trace]:
    traces = {}
    for name, case in CASES.items():
        traces[name] = Trace(rank)
        with recorded(traces[name]):
            staged(rank, world_size, case)
    traces[EACH] = Trace(rank)
    with recorded(traces[EACH]):
        sequence_parallel(rank, world_size, EACH_CASE)
    traces[OVERLAPPED] = Trace(rank)
    case = replace(CASES["groups"], steps=1)
    with (
        recorded(traces[OVERLAPPED]),
        patch.object(prepare, "can_overlap_reduction", lambda placement: True),
    ):
        staged(rank, world_size, case)
    return traces


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Trace]]:
    return run_ranks(traces_of, 8, timeout_s=150)


def test_the_cases_reduce_during_and_after_backward() -> None:
    for case in CASES.values():
        placements = [placement_of(plan.pipelines) for plan in case.plans()]
        assert {can_overlap_reduction(placement) for placement in placements} == {False, True}
        schemes = [placed.scheme for placement in placements for placed in placement]
        assert any(scheme.pp > 1 for scheme in schemes)
        assert any(scheme.tp > 1 for scheme in schemes)
    waiting = [
        plan
        for plan in EACH_CASE.plans()
        if not can_overlap_reduction(placement_of(plan.pipelines))
    ]
    assert waiting, (
        "ranks in two pipelines, which reduce-scatter during every backward all the same"
    )


@pytest.mark.parametrize("one_queue", [False, True], ids=["a queue each", "one queue"])
@pytest.mark.parametrize("name", [*CASES, EACH])
def test_steps_come_to_their_end(ranks: list[dict[str, Trace]], name: str, one_queue: bool) -> None:
    traces = [of_rank[name] for of_rank in ranks]
    assert sum(len(trace.events) for trace in traces) > 1000
    assert replay(traces, one_queue=one_queue) is None


def test_a_step_that_would_hang_is_seen(ranks: list[dict[str, Trace]]) -> None:
    """Stages that reduce in backward deadlock if kernels run one at a time."""
    stuck = replay([of_rank[OVERLAPPED] for of_rank in ranks], one_queue=True)
    assert stuck is not None
    assert "rank" in stuck
