"""Gradients that leave after each micro-batch: exact, repeatable, and never all at once."""

from dataclasses import replace

import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks, run_ranks_expecting_failure
from staged_runs import CONFIG, GATES, Outcome, SequenceParallelCase, differences, sequence_parallel

from seqplan import Scheme, rank_view
from seqplan.plans.views.placement import can_overlap_reduction, placement_of
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.held_bytes import HeldBytes, count_held_bytes
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

SMALL = replace(CONFIG, layers=2)
EACH = SequenceParallelCase(4, 24, config=SMALL, steps=3, reduce="micro-batch")
CASES = {
    "flat": EACH,
    "whole owners, tied, recomputing": replace(
        EACH, seed=25, config=replace(SMALL, tied=True, recompute="full"), sharding="by_parameter"
    ),
    "fp32": replace(EACH, seed=23, dtype=torch.float32),
    "fp32 again": replace(EACH, seed=23, dtype=torch.float32, steps=2),
}


def every_case(rank: int, world_size: int) -> list[Outcome]:
    return [sequence_parallel(rank, world_size, case) for case in CASES.values()]


@pytest.fixture(scope="module")
def outcomes() -> list[list[Outcome]]:
    return run_ranks(every_case, 4, timeout_s=200)


def test_the_cases_have_groups_that_regroup_and_ranks_that_are_idle() -> None:
    plans = [plan for case in CASES.values() for plan in case.plans()]
    assert any(not can_overlap_reduction(placement_of(plan.pipelines)) for plan in plans)
    counts = {
        sum(len(pipeline.micro_batches) for pipeline in plan.pipelines if rank in pipeline.ranks)
        for plan in plans
        for rank in range(4)
    }
    assert counts >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", list(CASES)[:3])
def test_training_is_that_of_one_process(outcomes: list[list[Outcome]], name: str) -> None:
    case, at = CASES[name], list(CASES).index(name)
    worst = differences(case, [outcome[at] for outcome in outcomes])
    assert all(error <= gate for error, gate in zip(worst, GATES[case.dtype], strict=True)), worst


def test_a_run_repeats_bit_for_bit(outcomes: list[list[Outcome]]) -> None:
    first, second = (outcomes[0][list(CASES).index(name)] for name in ("fp32", "fp32 again"))
    again = len(second[0])
    assert (first[0][:again], first[1][:again]) == second[:2]


WIDE = ModelConfig(hidden=64, layers=6, heads=4, kv_heads=2, ffn=128, vocab=64)


def held(rank: int, world_size: int) -> tuple[HeldBytes, HeldBytes, int]:
    """Counted bytes of both; the most elements of gradients during a backward."""
    groups = Communicators.create()
    sharded = ShardedStates(Llama(WIDE), groups.states)
    model = Llama(WIDE)
    states = ShardedStates(model, groups.states, reduce="micro-batch")
    most = 0

    def count(_: torch.Tensor) -> None:
        nonlocal most
        grads = sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
        most = max(most, grads + sum(unit.gradient.numel() for unit in states.units))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()])
    peers = Peers(groups.attention)
    prepare = make_preparer(SeededTokens(WIDE.vocab, 0), peers, heads=4, kv_heads=2)
    view = rank_view(one_pipeline_plan(Scheme(ring=2), [30, 20, 9], packed=False), rank)
    run_step(view, prepare(view), model, states, optimizer)
    assert all(unit.gradient.numel() == 0 for unit in states.units)
    return count_held_bytes(sharded.units), count_held_bytes(states.units), most


def test_no_rank_holds_all_gradients() -> None:
    """A layer at a time, in addition to those under way; the counted bytes include all of these."""
    for sharded, passing, most in run_ranks(held, 2):
        assert passing.parameters == sharded.parameters
        # Summed gradients are there during micro-batches, next to masters and two moments.
        assert passing.states == pytest.approx(sharded.states * 4 / 3)
        assert passing.gradients < 0.75 * sharded.gradients
        layer = 4 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 128 * 64 + 2 * 64)
        assert 4 * most < 1.1 * layer
        assert passing.gradients == pytest.approx(3 * 1.5 * layer, rel=0.01)


def without_announcement(rank: int, world_size: int, fault: str) -> None:
    groups = Communicators.create()
    model = torch.nn.Linear(2, 2)
    if fault == "mode":
        ShardedStates(model, groups.states, reduce="layer")  # type: ignore[arg-type]
    states = ShardedStates(model, groups.states, reduce="micro-batch")
    view = rank_view(one_pipeline_plan(Scheme(), [3, 4], packed=False), rank)
    states.all_gather(None if fault == "view" else view)
    if fault == "twice":
        states.next_micro_batch()
        states.backward(model(torch.ones(2)).sum())
    if fault == "reduce_scatter":
        states.reduce_scatter()
    states.backward(model(torch.ones(2)).sum())


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("mode", "ValueError: reduce must be step or micro-batch, not 'layer'"),
        ("view", "RuntimeError: gradients are reduced after each micro-batch: give states.all"),
        ("twice", "RuntimeError: gradients are reduced after each micro-batch: call states.next"),
        (
            "reduce_scatter",
            "RuntimeError: backward ran 0 times, and the step has 2 micro-batches of this",
        ),
    ],
)
def test_a_loop_that_announces_nothing_is_rejected(fault: str, text: str) -> None:
    (message,) = run_ranks_expecting_failure(without_announcement, 1, fault)
    assert message.startswith(text)
