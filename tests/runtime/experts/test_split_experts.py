"""Training with split experts compared with one process, and faults put in on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from expert_runs import DEAD, ROUTED, LockstepCase, RoutedCase
from nccl_rules import Trace, recorded, replay
from ranks import run_ranks
from staged_runs import GATES, Case, Outcome, differences, sequence_parallel, staged

from seqplan.plans.experts import find_components
from seqplan.plans.plan import Plan
from seqplan.plans.views.placement import can_overlap_reduction, placement_of
from seqplan.runtime.losses.router_loss import RouterCounts
from seqplan.runtime.states import sync
from seqplan.runtime.states.sync import CollectiveSync, Finish
from seqplan.runtime.states.unit import Unit

Run = Callable[[int, int, Case], Outcome]

CASES: dict[str, tuple[Run, RoutedCase]] = {
    "E 2 of 2": (staged, RoutedCase(2, 1, expert_parallel=2)),
    "E 2 of 4, module": (sequence_parallel, RoutedCase(4, 11, expert_parallel=2)),
    "E 4 of 4, tp, modes": (staged, RoutedCase(4, 9, expert_parallel=4, tensor=True, modes=True)),
    "E 4 of 4, module, modes": (sequence_parallel, RoutedCase(4, 1, expert_parallel=4, modes=True)),
    "E 2 of 4, each micro-batch": (
        sequence_parallel,
        RoutedCase(4, 12, expert_parallel=2, reduce="micro-batch"),
    ),
    "E 2 of 4, whole parameters": (
        staged,
        RoutedCase(4, 5, expert_parallel=2, sharding="by_parameter"),
    ),
    "E 4 of 4, no shared expert": (
        staged,
        RoutedCase(4, 10, expert_parallel=4, config=replace(ROUTED, ffn=0), tensor=True),
    ),
    "E 2 of 8, stages": (staged, RoutedCase(8, 4, expert_parallel=2, staged=True, steps=3)),
    "E 8 of 8, module, fp32": (
        sequence_parallel,
        RoutedCase(8, 10, torch.float32, expert_parallel=8),
    ),
    "E 2 of 4, tp, idle ranks": (
        staged,
        RoutedCase(4, 31, torch.float32, expert_parallel=2, tensor=True),
    ),
    "E 4 of 4, lockstep": (
        sequence_parallel,
        LockstepCase(4, 3, expert_parallel=4, reduce="micro-batch"),
    ),
    "E 2 of 4, staged lockstep": (staged, LockstepCase(4, 3, expert_parallel=2)),
    "E 2 of 2, recomputation of the model": (
        staged,
        RoutedCase(2, 1, expert_parallel=2, config=replace(ROUTED, recompute="full")),
    ),
    "E 1 of 4, tp": (staged, RoutedCase(4, 9, tensor=True)),
}
COUNTED, REPEATED = "E 8 of 8, module, fp32", "E 4 of 4, no shared expert"
TRACED = ("E 4 of 4, tp, modes", "E 4 of 4, module, modes", "E 2 of 4, each micro-batch")


def _run(rank: int, world_size: int, name: str) -> tuple[Outcome, Any]:
    """Run a case; with its trace, or the elements of experts that it syncs, if they are tested."""
    run, case = CASES[name]
    if name == COUNTED:
        return _count_synced(rank, world_size)
    if name not in TRACED:
        return run(rank, world_size, case), None
    trace = Trace(rank)
    with recorded(trace):
        return run(rank, world_size, case), trace


@cache
def run_case(name: str) -> list[tuple[Outcome, Any]]:
    return run_ranks(_run, CASES[name][1].ranks, name, timeout_s=150)


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_one_process(name: str) -> None:
    case = CASES[name][1]
    worst = differences(case, [outcome for outcome, _ in run_case(name)])
    assert all(error <= gate for error, gate in zip(worst, GATES[case.dtype], strict=True)), worst


@pytest.mark.parametrize("name", TRACED)
def test_steps_come_to_their_end_with_one_exchange_at_a_time(name: str) -> None:
    traces = [trace for _, trace in run_case(name)]
    for one_queue in (False, True):
        assert replay(traces, one_queue=one_queue) is None


def _couples(plan: Plan) -> bool:
    """Whether ranks of the plan have micro-steps without tokens, for others of their block."""
    components = find_components(
        [pipeline.scheme for pipeline in plan.pipelines],
        [pipeline.ranks for pipeline in plan.pipelines],
        plan.expert_parallel,
    )
    return any(component.coupled for component in components)


def test_the_cases_have_what_is_hard() -> None:
    plans = [plan for _, case in CASES.values() for plan in case.plans()]
    assert sum(map(_couples, plans)) > 15
    assert any(plan.idle_ranks and _couples(plan) for plan in plans)
    placements = [placement_of(plan.pipelines) for plan in plans if _couples(plan)]
    assert {can_overlap_reduction(placement) for placement in placements} == {False, True}


def test_an_expert_without_tokens_keeps_its_values_but_for_decay() -> None:
    case = RoutedCase(2, 3, expert_parallel=2, steps=1, optimizer=_sgd)
    before = dict(case.model(case.seed).named_parameters())
    ((_, _, after), _) = run_ranks(staged, 2, case)
    name = "layers.0.experts.down"
    assert torch.equal(after[name][DEAD], before[name][DEAD])
    assert not torch.equal(after[name][0], before[name][0])


def _sgd(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([value for _, value in named], lr=0.1)


def test_the_same_run_is_equal_bit_for_bit() -> None:
    (first, _), *_ = run_case(REPEATED)
    (second, _), *_ = run_ranks(_run, CASES[REPEATED][1].ranks, REPEATED)
    assert first[:2] == second[:2]
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


def _count_synced(rank: int, world_size: int) -> tuple[Outcome, int]:
    """Count the elements of experts that a rank gives to collectives."""
    counted = 0
    gather, scatter = sync._ALL_GATHER, sync._REDUCE_SCATTER
    experts: set[int] = set()
    start = CollectiveSync.all_gather, CollectiveSync.reduce_scatter

    def counting(collective: Any, place: int) -> Any:
        def call(out: Any, source: Any, **options: Any) -> Any:
            nonlocal counted
            if experts:
                counted += (out, source)[place].numel()
            return collective(out, source, **options)

        return call

    def marking(method: Any) -> Any:
        def call(self: CollectiveSync, unit: Unit, **options: Any) -> Finish:
            if "experts" in unit.name:
                experts.add(1)
            try:
                finish: Finish = method(self, unit, **options)
            finally:
                experts.clear()
            return finish

        return call

    with (
        patch.object(sync, "_ALL_GATHER", counting(gather, 0)),
        patch.object(sync, "_REDUCE_SCATTER", counting(scatter, 1)),
        patch.object(CollectiveSync, "all_gather", marking(start[0])),
        patch.object(CollectiveSync, "reduce_scatter", marking(start[1])),
    ):
        run, case = CASES[COUNTED]
        return run(rank, world_size, case), counted


def test_experts_of_8_ranks_sync_an_eighth() -> None:
    split = [counted for _, counted in run_case(COUNTED)]
    # Without split experts a layer's are in its unit: all of them.
    experts = 2 * ROUTED.layers * ROUTED.experts * 3 * ROUTED.expert_ffn * ROUTED.hidden
    steps = CASES[COUNTED][1].steps
    assert split == [steps * experts // 8] * 8


@contextmanager
def _divided_by_replicas() -> Iterator[None]:
    """As if gradients of experts were means over the ranks that hold them."""
    reduce = CollectiveSync.reduce_scatter

    def divided(self: CollectiveSync, unit: Unit, **options: bool) -> Finish:
        if unit.parts > 1:
            unit.gradient.div_(self._group.size())
        return reduce(self, unit, **options)

    with patch.object(CollectiveSync, "reduce_scatter", divided):
        yield


@contextmanager
def _counted_on_one_rank() -> Iterator[None]:
    """As if the tokens of one rank were the batch, for the share of each expert."""

    def add_up(self: RouterCounts, tokens: int, *_: Any, **options: Any) -> None:
        self.weights = self.loss.weights(self._counts, 2 * tokens)

    with patch.object(RouterCounts, "add_up", add_up):
        yield


FAULTS = {"divided": _divided_by_replicas, "counted": _counted_on_one_rank}


def _run_with(rank: int, world_size: int, fault: str, case: RoutedCase) -> Outcome:
    with FAULTS[fault]():
        return staged(rank, world_size, case)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_program_is_seen(fault: str) -> None:
    case = RoutedCase(4, 3, expert_parallel=2, steps=1)
    assert differences(case, run_ranks(_run_with, 4, fault, case))[1] > 1e-4
