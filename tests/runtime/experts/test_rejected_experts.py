"""Bad input of split experts: one line each, on every rank, before a step runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_runs import ROUTED
from ranks import run_ranks, run_ranks_expecting_failure

from seqplan.plans.construct import construct_plan
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.errors import PlanError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama


def _make(rank: int, world_size: int, config: ModelConfig, degree: int) -> None:
    StagedLlama(Llama(config), Communicators.create(), expert_parallel=degree)


@pytest.mark.parametrize(
    ("config", "degree", "message"),
    [
        (ROUTED, 3, "expert_parallel: 3 does not divide the job's 4 ranks"),
        (ROUTED, 0, "expert_parallel: 0 does not divide the job's 4 ranks"),
        (
            replace(ROUTED, experts=6),
            4,
            "expert_parallel: 4 does not divide the model's 6 experts",
        ),
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
    logits = model(torch.arange(7), local_context([7]))
    logits.sum().backward()
    assert [layer.shape for layer in model.router_logits] == [(7, 8)] * 2
    assert all(parameter.grad is not None for parameter in model.parameters())
