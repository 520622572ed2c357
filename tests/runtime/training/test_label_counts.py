"""Loss tokens of a plan are compared with the labels of data without targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks

from seqplan import Plan, Scheme, rank_view, runtime
from seqplan.runtime.data.micro_batch import MicroBatchWork
from seqplan.runtime.losses.token_losses import compute_chunked_loss, label_loss

CONFIG = runtime.models.ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=64)
LENGTHS = [30, 7, 12]
MESSAGE = "step 0: the plan has 7 loss tokens, the data 46 labels"


def some_loss(logits: torch.Tensor, work: MicroBatchWork) -> torch.Tensor:
    return logits.sum()  # of as many tokens as the plan states


def run_whole(groups: runtime.Communicators, plan: Plan, rank: int, **options: Any) -> Any:
    torch.manual_seed(0)
    model = runtime.models.Llama(CONFIG)
    states = runtime.ShardedStates(model, groups.states)
    optimizer = torch.optim.SGD([master for _, master in states.master_parameters()], lr=0.1)
    prepare = runtime.make_preparer(
        runtime.data.SeededTokens(64, 0), runtime.Peers(groups.attention), heads=4, kv_heads=2
    )
    view = rank_view(plan, rank)
    return runtime.run_step(view, prepare(view), model, states, optimizer, **options)


def run_stages(groups: runtime.Communicators, plan: Plan, rank: int) -> Any:
    torch.manual_seed(0)
    job = runtime.StagedLlama(runtime.models.Llama(CONFIG), groups, tensor_degrees=(2,))
    view = rank_view(plan, rank)
    masters = [master for _, master in job.states.master_parameters()]
    before = [master.clone() for master in masters]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    try:
        job.run_step(view, job.make_preparer(runtime.data.SeededTokens(64, 0))(view), optimizer)
    finally:
        changed = not all(map(torch.equal, masters, before))
        assert changed == (plan.loss_tokens == 46)


def check_counts(rank: int, world_size: int) -> None:
    groups = runtime.Communicators.create()
    whole = one_pipeline_plan(Scheme(ulysses=2, ring=2), LENGTHS, packed=False)
    in_stages = one_pipeline_plan(Scheme(tp=2, pp=2), LENGTHS, packed=False)
    chunked = compute_chunked_loss(lambda hidden: hidden, label_loss, 4)
    runs: list[tuple[Plan, Callable[[Plan], Any]]] = [
        (whole, lambda plan: run_whole(groups, plan, rank)),
        (whole, lambda plan: run_whole(groups, plan, rank, loss_of=chunked)),
        (in_stages, lambda plan: run_stages(groups, plan, rank)),
    ]
    for plan, run in runs:
        run(plan)
        with pytest.raises(runtime.errors.PlanError, match=MESSAGE):
            run(replace(plan, loss_tokens=7))
    result = run_whole(groups, replace(whole, loss_tokens=7), rank, non_blocking=True)
    with pytest.raises(runtime.errors.PlanError, match=MESSAGE):
        _ = result.loss
    _ = run_whole(groups, replace(whole, loss_tokens=7), rank, loss_of=some_loss).loss


def test_other_numbers_than_the_labels_are_rejected_on_all_ranks() -> None:
    run_ranks(check_counts, 4)
