"""Plans that a model cannot run, and models that stages cannot: one line, on every rank."""

from dataclasses import replace

import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks_expecting_failure

from seqplan import Scheme, rank_view
from seqplan.plans.plan import PlannedPipeline
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.errors import PlanError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.prepare import check_runnable
from seqplan.runtime.pipeline.staged_llama import StagedLlama

CONFIG = ModelConfig(hidden=48, layers=3, heads=6, kv_heads=2, ffn=5, vocab=60)


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (Scheme(tp=4), "tp 4 does not divide the model's 6 attention heads"),
        (Scheme(tp=3), "tp 3 neither divides the model's 2 KV heads nor the other way"),
        (Scheme(tp=2, ulysses=4), "tp 2 and Ulysses degree 4 exceed the model's 6 attention heads"),
        (Scheme(ulysses=7), "Ulysses degree 7 exceeds the model's 6 attention heads"),
        (Scheme(tp=6), "tp 6 exceeds the model's 5 feed-forward rows"),
        (Scheme(pp=4), "pp 4 exceeds the model's 3 layers"),
    ],
    ids=str,
)
def test_degrees_that_the_sizes_do_not_allow(scheme: Scheme, reason: str) -> None:
    plan = one_pipeline_plan(scheme, [40, 9], step=4)
    for rank in (0, scheme.gpus - 1):
        with pytest.raises(PlanError) as caught:
            check_runnable(rank_view(plan, rank), CONFIG)
        assert str(caught.value).startswith(f"step 4, pipeline 0: {reason}")
    check_runnable(rank_view(one_pipeline_plan(Scheme(tp=2, pp=3), [9]), 0), CONFIG)


def test_micro_steps_that_go_through_stages() -> None:
    plan = one_pipeline_plan(Scheme(pp=3), [40, 9], step=4)
    (pipeline,) = plan.pipelines
    view = rank_view(replace(plan, pipelines=(replace(pipeline, micro_step=0),)), 1)
    with pytest.raises(PlanError, match=r"step 4: lockstep with stages is for trainers"):
        check_runnable(view, CONFIG)


def test_a_rank_that_would_hold_two_parts_of_the_model() -> None:
    plan = one_pipeline_plan(Scheme(tp=2), [40, 9])
    other = PlannedPipeline(Scheme(pp=2), (0, 1), (), 0.0)
    view = rank_view(replace(plan, pipelines=(*plan.pipelines, other)), 1)
    with pytest.raises(PlanError, match=r"step 0: rank 0: pipeline 1 needs .*; a rank holds one"):
        check_runnable(view, CONFIG)


def stage_model(rank: int, world_size: int, kind: str) -> None:
    model = Llama(CONFIG).to(torch.bfloat16)
    if kind == "frozen":
        model.layers[0].requires_grad_(rank == 0)  # type: ignore[index]
    else:
        model.norm.float()
    StagedLlama(model, Communicators.create(), device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("frozen", "requires_grad=False, and StagedLlama trains all parameters. Set requires_gr"),
        ("mixed", "torch.float32, and embedding.weight has torch.bfloat16. Convert the model to"),
    ],
)
def test_frozen_parameters_and_several_dtypes_are_rejected_by_name(kind: str, message: str) -> None:
    errors = run_ranks_expecting_failure(stage_model, 2, kind)
    assert len(set(errors)) == 1
    name, _, rest = errors[0].removeprefix("ValueError: ").partition(": ")
    assert rest.startswith(message)
    assert name.startswith("layers.0." if kind == "frozen" else "norm.")
