"""Bad input of split experts: one line each, on every rank, before a step runs."""

import os
from dataclasses import replace

import pytest
import torch
from expert_runs import ROUTED
from moded_plans import set_modes
from ranks import run_ranks, run_ranks_expecting_failure

from seqplan import construct_plan, from_json, rank_view, to_json
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.errors import PlanError, RankLost
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.experts.dispatch import dispatch_tokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.training.prepare import make_preparer


def _make(rank: int, world_size: int, config: ModelConfig, degree: int) -> None:
    StagedLlama(Llama(config), Communicators.create(), expert_parallel=degree)


@pytest.mark.parametrize(
    ("config", "degree", "message"),
    [
        (ROUTED, 3, "expert_parallel: 3 does not divide the job's 4 ranks"),
        (ROUTED, 0, "expert_parallel: 0 does not divide the job's 4 ranks"),
        (replace(ROUTED, experts=6), 4, "expert_parallel: 4 does not divide the model's 6 experts"),
        (ModelConfig(), 2, "expert_parallel: 2 for a model without experts"),
    ],
)
def test_a_degree_that_does_not_fit_is_rejected(
    config: ModelConfig, degree: int, message: str
) -> None:
    errors = run_ranks_expecting_failure(_make, 4, config, degree)
    assert all(error.startswith(f"ValueError: {message}") for error in errors), errors
    assert all(len(error.splitlines()) == 1 for error in errors)


def _prepare(rank: int, world_size: int) -> list[str]:
    job = StagedLlama(Llama(ROUTED), Communicators.create(), expert_parallel=2)
    prepare = job.make_preparer(SeededTokens(ROUTED.vocab, 0))
    messages = []
    for plan in (
        construct_plan([4, 5], {"u4": [[[0, 1]]]}),
        replace(construct_plan([4, 5], {"u4": [[[0, 1]]]}), expert_parallel=4),
        replace(construct_plan([4, 5], {"pp2": [[[0]], [[1]]]}), expert_parallel=2),
    ):
        with pytest.raises(PlanError) as error:
            prepare(rank_view(plan, rank))
        messages.append(str(error.value))
    return messages


def test_plans_of_another_degree_are_rejected() -> None:
    for messages in run_ranks(_prepare, 4):
        assert "expert_parallel 1, the job 2" in messages[0]
        assert "expert_parallel 4, the job 2" in messages[1]
        assert "does not divide the 1 ranks of a stage" in messages[2]


def _prepare_modes(rank: int, world_size: int) -> list[str]:
    """Prepare pipelines of one rank each, whose blocks they share, and one of a whole block."""
    groups = Communicators.create()
    blocks = ExpertBlocks.create(2, groups)
    prepare = make_preparer(
        SeededTokens(ROUTED.vocab, 0),
        Peers(groups.attention),
        heads=8,
        kv_heads=2,
        modes=["none", "full"],
        model="Some",
        blocks=blocks,
    )
    messages = []
    for shape in ({"u1": [[[0]], [[1]]]}, {"u2": [[[0, 1]]]}):
        plan = set_modes(construct_plan([4, 5], shape), ["none"])
        try:
            prepare(rank_view(replace(plan, expert_parallel=2), rank))
            messages.append("prepared")
        except PlanError as error:
            messages.append(str(error))
    return messages


def test_a_model_that_cannot_repeat_exchanges_is_rejected() -> None:
    for messages in run_ranks(_prepare_modes, 2):
        assert messages[0].startswith("step 0: Some cannot apply recomputation mode: mlp")
        assert messages[1] == "prepared"


def _exceed_row_limit(rank: int, world_size: int, limit: int) -> str:
    """Send three rows from each rank to the expert of rank 1, and one to that of rank 0."""
    blocks = ExpertBlocks.create(2, Communicators.create(), limit)
    tokens, index = torch.randn(4, 4), torch.tensor([[1], [0], [1], [1]])
    try:
        dispatch_tokens(tokens, index, torch.ones(4, 1), 2, lambda rows, counts: rows, blocks)
    except PlanError as error:
        return str(error)
    return "sent"


def test_rows_beyond_a_limit_are_rejected() -> None:
    messages = run_ranks(_exceed_row_limit, 2, 5)
    assert len(set(messages)) == 1
    assert messages[0].startswith(
        "rank 1 would receive 6 rows of its experts in a layer, more than expert_row_limit 5"
    )
    assert run_ranks(_exceed_row_limit, 2, 6) == ["sent"] * 2
    errors = run_ranks_expecting_failure(_exceed_row_limit, 2, 0)
    assert errors == ["ValueError: expert_row_limit: 0. Give a number of rows above 0"] * 2


def _lose_a_rank(rank: int, world_size: int) -> str:
    """End one rank before its tokens go to the others; the error of the others."""
    blocks = ExpertBlocks.create(2, Communicators.create())
    if rank == 1:
        os._exit(3)
    tokens, index = torch.randn(3, 4), torch.zeros(3, 1, dtype=torch.int64)
    with pytest.raises(RankLost) as lost:
        dispatch_tokens(tokens, index, torch.ones(3, 1), 2, lambda rows, counts: rows, blocks)
    return str(lost.value)


def test_a_lost_rank_of_the_block_is_named() -> None:
    message, _ = run_ranks(_lose_a_rank, 2, dying=frozenset({1}))
    assert "while exchanging tokens of experts" in message


def test_a_plan_with_tensor_parallel_experts_is_rejected_by_name() -> None:
    plan = replace(construct_plan([4, 5], {"u2": [[[0, 1]]]}), expert_parallel=2)
    text = to_json(plan).replace(
        '"expert_parallel"', '"expert_tensor_parallel":2,"expert_parallel"'
    )
    with pytest.raises(PlanError, match="expert_tensor_parallel"):
        from_json(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts_per_token": 2}, "is for a model with experts"),
        ({"experts": 4, "expert_ffn": 8}, "experts_per_token must be in 1 … 4"),
        ({"experts": 4, "experts_per_token": 5, "expert_ffn": 8}, "must be in 1 … 4"),
        ({"experts": 4, "experts_per_token": 2}, "expert_ffn 0 must be at least 1"),
    ],
)
def test_sizes_of_experts_are_checked(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**options)  # type: ignore[arg-type]


def test_a_model_alone_runs_its_experts() -> None:
    from seqplan.runtime.sequence_parallel.context import local_context

    model = Llama(ROUTED)
    model(torch.arange(7), local_context([7])).sum().backward()
    assert [layer.shape for layer in model.router_logits] == [(7, 8)] * 2
    assert all(parameter.grad is not None for parameter in model.parameters())
