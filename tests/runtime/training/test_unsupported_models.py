"""Models whose numbers would be wrong, and ranks that are gone: reported, not computed or hung."""

import os

import numpy as np
import pytest
import torch
from random_plans import one_pipeline_plan, random_plan
from ranks import run_ranks
from small_plans import small_plan
from torch import Tensor

from seqplan import Plan, Scheme, rank_view
from seqplan.plans.views.placement import can_overlap_reduction
from seqplan.runtime import (
    AttentionContext,
    Communicators,
    Peers,
    ShardedStates,
    attention,
    make_preparer,
    run_step,
)
from seqplan.runtime.check.reference import dense_attention, reference_step
from seqplan.runtime.data import SeededTokens
from seqplan.runtime.errors import RankLost
from seqplan.runtime.models import Llama, ModelConfig
from seqplan.runtime.training import StepResult

CONFIG = ModelConfig(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=64)


class Job:
    """A small model under plans, on this rank."""

    def __init__(self, model: Llama) -> None:
        groups = Communicators.create(30)
        self.model = model
        self.states = ShardedStates(model, groups.states)
        masters = [master for _, master in self.states.master_parameters()]
        self.optimizer = torch.optim.AdamW(masters, lr=1e-3)
        self.prepare = make_preparer(
            SeededTokens(CONFIG.vocab, 5),
            Peers(groups.attention),
            heads=CONFIG.heads,
            kv_heads=CONFIG.kv_heads,
        )

    def step(self, plan: Plan, rank: int) -> StepResult:
        view = rank_view(plan, rank)
        return run_step(view, self.prepare(view), self.model, self.states, self.optimizer)


def own_attention(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
    """A model's original attention: all tokens here as one document."""
    return dense_attention(q, k, v, context)


def unplanned(rank: int, world_size: int) -> str:
    torch.manual_seed(0)
    job = Job(Llama(CONFIG, attend=own_attention))
    with pytest.raises(ValueError, match="did not call") as caught:
        job.step(one_pipeline_plan(Scheme(ring=2), [40]), rank)
    return str(caught.value)


def test_a_model_with_another_attention_is_rejected() -> None:
    for text in run_ranks(unplanned, 2):
        assert text.startswith("the model did not call seqplan.runtime.attention with the context")
        assert "1 documents on 2 ranks" in text


def leaving(rank: int, world_size: int, moment: str) -> tuple[str, int | None, str, int | None]:
    """Rank 2 ends silently in a step; return the others' errors."""
    torch.manual_seed(0)

    def attend(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        if rank == 2 and moment == "attention" and job.running == 1:
            os._exit(9)
        return attention(q, k, v, context)

    job = Job(Llama(CONFIG, attend=attend))
    try:
        for step in range(3):
            job.running = step  # type: ignore[attr-defined]
            if rank == 2 and moment == "all_gather" and step == 1:
                os._exit(9)
            job.step(small_plan(step, world_size), rank)
    except RankLost as loss:
        return str(loss), loss.step, loss.doing, loss.peer
    raise AssertionError("no loss was noticed")


@pytest.mark.parametrize("moment", ["attention", "all_gather"])
def test_a_lost_rank_is_one_sentence_on_every_other(moment: str) -> None:
    outcomes = run_ranks(leaving, 3, moment, dying=frozenset({2}))
    # One that waits for the other, which has noticed and sends no more, has its time-out.
    lost = "step 1: a rank is lost: "
    assert any(text.startswith(f"{lost}the connection closed while ") for text, *_ in outcomes[:2])
    for text, step, doing, peer in outcomes[:2]:
        assert text.startswith((f"{lost}the connection closed ", f"{lost}no answer within "))
        assert "\n" not in text
        assert ".cc" not in text
        assert step == 1
        assert doing
        assert peer in (None, 0, 1, 2)
    if moment == "attention":  # a rank that waits for one other names it
        assert any(peer is not None for _, _, _, peer in outcomes[:2])


def autocast_losses(rank: int, world_size: int, plans: list[Plan]) -> list[float]:
    torch.manual_seed(0)
    job = Job(Llama(CONFIG))
    with torch.autocast("cpu", torch.bfloat16):
        return [job.step(plan, rank).loss for plan in plans]


def test_a_model_under_autocast_trains_as_in_one_process() -> None:
    rng = np.random.default_rng(3)
    plans = [random_plan(rng, 2, step=step, heads=4, longest=60) for step in range(3)]
    torch.manual_seed(0)
    alone = Llama(CONFIG, attend=lambda q, k, v, c: dense_attention(q.to(v), k.to(v), v, c))
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        expected = [
            reference_step(plan, SeededTokens(CONFIG.vocab, 5), alone, optimizer)[0]
            for plan in plans
        ]
    for losses in run_ranks(autocast_losses, 2, plans):
        assert losses == pytest.approx(expected, rel=2e-3)


def last_ones(rank: int, world_size: int, plans: list[Plan]) -> list[list[bool]]:
    prepare = Job(Llama(CONFIG)).prepare
    return [[work.last for work in prepare(rank_view(plan, rank))] for plan in plans]


def test_reductions_wait_if_a_rank_is_in_two_pipelines() -> None:
    """Also on a rank that is in one only: a peer of it is not."""
    shared, alone = small_plan(0, 2), one_pipeline_plan(Scheme(ring=2), [9, 5], packed=False)
    assert not can_overlap_reduction(rank_view(shared, 0).placement)
    for of_shared, of_alone in run_ranks(last_ones, 2, [shared, alone]):
        assert len(of_shared) == 2
        assert not any(of_shared)
        assert of_alone == [False, True]
