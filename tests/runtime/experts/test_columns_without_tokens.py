"""Per-token columns of a loss on ranks of a block that have no tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from expert_runs import ROUTED, split_plan
from ranks import run_ranks

from seqplan import construct_plan, rank_view, runtime
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import Plan
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.losses.token_losses import log_probabilities

CONFIG = replace(ROUTED, router_loss=0.0)


def make_plan(ranks: int) -> Plan:
    plan = construct_plan([9, 5], {"u1": [[[0, 1]]]})
    groups = process_groups(plan.pipelines)
    plan = replace(plan, world_size=ranks, idle_ranks=tuple(range(1, ranks)), groups=groups)
    return split_plan(plan, ranks) if ranks > 1 else plan


def make_rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "input_ids": rng.integers(0, CONFIG.vocab, length),
            "gain": np.float32(length),
            "teacher": rng.normal(size=(length, 3)),
        }
        for length in (9, 5)
    ]


def weigh(logits: torch.Tensor, work: MicroBatchWork) -> torch.Tensor:
    # Without rows, too, columns have their further axes.
    teacher = (work.extras["teacher"] * torch.arange(3)).sum(1)
    return log_probabilities(logits, work) * (work.extras["gain"] + teacher)


def add_up(logits: torch.Tensor, work: MicroBatchWork) -> torch.Tensor:
    return weigh(logits, work).sum()


def run(rank: int, world_size: int) -> tuple[float, list[Any]]:
    groups = runtime.Communicators.create()
    torch.manual_seed(0)
    model = runtime.models.Llama(CONFIG)
    experts, blocks = None, None
    if world_size > 1:
        blocks = ExpertBlocks.create(world_size, groups)
        experts = model.split_experts(blocks, groups.states, torch.device("cpu"))
    states = runtime.ShardedStates(model, groups.states, experts=experts)
    optimizer = torch.optim.SGD([master for _, master in states.master_parameters()], lr=0.1)
    data = runtime.data.IndexedTargets(make_rows(), "input_ids", extras=["gain", "teacher"])
    prepare = runtime.make_preparer(
        data,
        runtime.Peers(groups.attention),
        heads=CONFIG.heads,
        kv_heads=CONFIG.kv_heads,
        blocks=blocks,
    )
    view = rank_view(make_plan(world_size), rank)
    work = prepare(view)
    values = runtime.training.token_values(work, model, states, groups.control, values_of=weigh)
    loss = runtime.run_step(view, work, model, states, optimizer, loss_of=add_up).loss
    return loss, [sequence.values for sequence in values]


def test_a_rank_without_tokens_has_the_columns_of_the_data() -> None:
    ((loss, values),) = run_ranks(run, 1)
    for other_loss, other_values in run_ranks(run, 2):
        assert abs(other_loss - loss) < 1e-4 * abs(loss)
        for value, other in zip(values, other_values, strict=True):
            assert np.allclose(value, other, rtol=1e-4)
