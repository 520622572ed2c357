"""Steps under strategies that change at each, against one process."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_plans import random_plan
from ranks import run_ranks
from staged_runs import Outcome, train_alone

from seqplan import Plan, rank_view
from seqplan.runtime.check.reference import dense_attention
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import StepResult, run_step

CONFIG = ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=64)
ONE_LAYER = replace(CONFIG, layers=1)
CLIP = 0.4
RATE = 1e-3


def plans(world_size: int, steps: int, **sizes: int) -> list[Plan]:
    """Steps in which a sample is there twice, as samplers that draw with replacement do."""
    rng = np.random.default_rng(world_size)
    drawn = (
        random_plan(rng, world_size, step=step, heads=CONFIG.heads, **sizes)
        for step in range(steps)
    )
    return [replace(plan, ids=(*plan.ids[:-1], plan.ids[0])) for plan in drawn]


def model(dtype: torch.dtype, seed: int = 0, **options: object) -> Llama:
    torch.manual_seed(seed)
    return Llama(CONFIG, **options).to(dtype)  # type: ignore[arg-type]


def train_on_plans(
    trained: Llama, rank: int, plans: list[Plan], clip_norm: float | None = None
) -> Iterator[StepResult]:
    """Run the rank's part of each plan; the parameters are whole after the last."""
    groups = Communicators.create()
    states = ShardedStates(trained, groups.states)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()], lr=RATE)
    prepare = make_preparer(
        SeededTokens(CONFIG.vocab, 5),
        Peers(groups.attention),
        heads=CONFIG.heads,
        kv_heads=CONFIG.kv_heads,
    )
    for plan in plans:
        view = rank_view(plan, rank)
        yield run_step(view, prepare(view), trained, states, optimizer, clip_norm=clip_norm)
    states.materialize()


def train(rank: int, world_size: int, dtype: torch.dtype, steps: int) -> Outcome:
    trained = model(dtype, seed=rank)  # rank 0's values must win
    results = list(train_on_plans(trained, rank, plans(world_size, steps), CLIP))
    return (
        [result.loss for result in results],
        [result.gradient_norm for result in results],
        {name: parameter.detach() for name, parameter in trained.named_parameters()},
    )


def reference(world_size: int, dtype: torch.dtype, steps: int) -> Outcome:
    trained = model(dtype, attend=dense_attention)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE)
    return train_alone(trained, optimizer, plans(world_size, steps), CLIP)


@pytest.mark.parametrize(
    ("world_size", "dtype", "loss_gate", "parameter_gate"),
    [(4, torch.float32, 1e-5, 1e-4), (3, torch.float64, 1e-10, 1e-10)],
)
def test_losses_and_parameters_are_those_of_one_process(
    world_size: int, dtype: torch.dtype, loss_gate: float, parameter_gate: float
) -> None:
    steps = 5
    losses, norms, parameters = reference(world_size, dtype, steps)
    assert max(norms) > CLIP > min(norms)  # clipping is tried both ways
    for outcome in run_ranks(train, world_size, dtype, steps, timeout_s=120):
        assert outcome[0] == pytest.approx(losses, rel=loss_gate)
        assert outcome[1] == pytest.approx(norms, rel=100 * loss_gate)
        assert outcome[2].keys() == parameters.keys()
        for name, mine in outcome[2].items():
            assert (mine - parameters[name]).abs().max().item() <= parameter_gate, name


def usage() -> tuple[int, int, int]:
    """Threads, descriptors and resident KiB of this process."""
    resident = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident


def many_steps(rank: int, world_size: int, steps: int) -> list[tuple[int, int, int]]:
    """Threads, descriptors and resident KiB along the way."""
    short = plans(world_size, steps, longest=40, sequences=2)
    results = train_on_plans(Llama(ONE_LAYER), rank, short)
    return [usage() for step, _ in enumerate(results) if step % 20 == 19]


def test_nothing_grows_over_100_changes_of_strategy() -> None:
    for usages in run_ranks(many_steps, 2, 100, timeout_s=180):
        threads, descriptors, resident = zip(*usages, strict=True)
        assert threads[-1] <= threads[0]
        assert descriptors[-1] <= descriptors[0]
        assert resident[-1] - resident[1] < 1600  # 60 changes; the first fill torch's caches
