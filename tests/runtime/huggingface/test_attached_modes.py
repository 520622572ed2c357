"""Models of transformers under recomputation modes: alone, and attached on ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attached_inputs import adapted, data, model, optimizer, plans
from moded_plans import set_modes
from transformers_ranks import Program, needs_transformers, run_with_transformers

from seqplan import rank_view, runtime
from seqplan.plans.recomputation import MODES
from seqplan.runtime.saved_tensors import SavedBytes
from seqplan.runtime.sequence_parallel.context import local_context

pytestmark = needs_transformers

DROPPING = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, **DROPPING}
LENGTHS = [40, 1, 60]
MIXED = (*MODES, "elementwise+0.5")


def compiled() -> Any:
    some = model("qwen2")
    for layer in some.model.layers:
        layer.compile(backend="eager")
    return some


CASES: dict[str, Any] = {
    "bf16": lambda: model("qwen2").bfloat16(),
    "autocast": lambda: model("qwen2"),
    "dropout": lambda: model("gpt2", **GPT2),
    "experts": lambda: model("deepseek_v3"),
    "LoRA": lambda: adapted(0),
    "compiled": compiled,
    "no flag": lambda: model("jetmoe"),
    "in place": lambda: model("gpt_oss", output_router_logits=False),
}
EXPECTED = {
    "compiled": ("none", "attention_core", "full"),
    "no flag": ("none", "attention_core", "mlp"),
    "in place": ("none", "attention_core", "mlp", "full"),
}
SELECTED = {"elementwise", "half_products"}


def alone() -> dict[str, Any]:
    """Available modes of each model, and bytes and whether gradients are equal, by mode."""
    from seqplan.runtime.huggingface.attached import AttachedModel
    from seqplan.runtime.huggingface.attention import IMPLEMENTATION
    from seqplan.runtime.huggingface.probe import probe

    outcomes = {}
    for name, make in CASES.items():
        some = make()
        attached = AttachedModel(some)
        attached.autocast = torch.bfloat16 if name == "autocast" else None
        attached.lm.set_attn_implementation(IMPLEMENTATION)
        attached.layers.attach(some)
        probe(attached)
        attached.train()
        modes = attached.recomputation.modes
        offloading = [f"{mode}+0.5" for mode in modes if attached.recomputation.offloads]
        results = [train(attached, mode) for mode in ("none", None, *modes, *offloading)]
        equal = [all(map(torch.equal, results[0][1], result[1])) for result in results]
        saved = [result[0] for result in results]
        attached.forget_call()
        if name == "bf16":
            attached.lm.gradient_checkpointing_enable()
        by_setting = [train(attached, None)[0], train(attached, "none")[0]]
        attached.forget_call()
        by_setting.append(train(attached, None)[0])
        outcomes[name] = {
            "modes": modes,
            "equal": equal,
            "saved": dict(zip((None, *modes, *offloading), saved[1:], strict=True)),
            "by setting": by_setting,
        }
    return outcomes


def train(attached: Any, mode: str | None) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(0)
    tokens = torch.arange(sum(LENGTHS)) % 61
    saved = SavedBytes([*attached.parameters(), *attached.buffers()])
    with saved.hooks():
        hidden = attached(tokens, replace(local_context(LENGTHS), recompute=mode))
        loss = attached.logits(hidden).float().square().mean()
    loss.backward()
    trained = [parameter for parameter in attached.parameters() if parameter.requires_grad]
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    attached.zero_grad()
    return saved.total, gradients


def on_rank(rank: int, world_size: int) -> Any:
    """Steps of one model with and without modes; what a model that cannot apply one raises."""
    from seqplan import huggingface

    groups = runtime.Communicators.create(200)
    losses: list[list[tuple[float, float]]] = []
    reports: list[Any] = []
    for modes in (["none"], MIXED):
        torch.manual_seed(rank)
        job = huggingface.attach(
            model("gpt2", n_positions=128, **GPT2),
            data(),
            optimizer=optimizer,
            groups=groups,
            reduce="micro-batch",
            callbacks=[reports.append],
        )
        torch.manual_seed(rank)
        moded = [set_modes(plan, modes, plan.step) for plan in plans()]
        results = [job.run(step, clip_norm=1.0, count_saved=True) for step in job.steps(moded)]
        losses.append([(result.loss, result.gradient_norm) for result in results])
    planned = [
        [
            batch.recompute
            for pipeline in rank_view(plan, rank).pipelines
            for batch in pipeline.micro_batches
        ]
        for plan in moded
    ]
    job = huggingface.attach(model("jetmoe"), data(), optimizer=optimizer, groups=groups)
    message = ""
    try:
        next(iter(job.steps([set_modes(plans()[0], ["none+1"])])))
    except runtime.errors.PlanError as error:
        message = str(error)
    return losses, [report.micro_batches for report in reports[len(plans()) :]], planned, message


@pytest.fixture(scope="module")
def outcomes() -> Any:
    return run_with_transformers([Program(on_rank, 4, (), meanwhile=alone)])[0]


@pytest.mark.parametrize("name", CASES)
def test_available_modes_give_equal_gradients(outcomes: Any, name: str) -> None:
    found = outcomes[1][name]
    assert found["modes"] == EXPECTED.get(name, MODES)
    assert all(found["equal"])


@pytest.mark.parametrize("name", CASES)
def test_modes_keep_fewer_bytes(outcomes: Any, name: str) -> None:
    """But for adapters so small that elementwise keeps more than they do without."""
    found = outcomes[1][name]["saved"]
    none = found["none"]
    assert found[None] == none
    offloading = [mode for mode in found if mode and "+" in mode]
    assert all(found[mode] < found[mode.partition("+")[0]] for mode in offloading)
    assert bool(offloading) == (name not in ("no flag", "compiled"))
    light = [mode for mode in found if mode not in (None, "none", *offloading)]
    if name == "LoRA":
        light.remove("elementwise")
    assert all(found[mode] < none for mode in light)
    assert all(found.get("full", 0) < found[mode] for mode in light if mode != "full")
    if found.keys() >= SELECTED:
        assert found["half_products"] < found["elementwise"]


def test_without_a_mode_the_settings_of_the_model_apply(outcomes: Any) -> None:
    found = outcomes[1]["bf16"]
    assert found["by setting"] == [found["saved"][mode] for mode in ("full", "none", "full")]


def test_steps_on_ranks_are_bit_for_bit_those_without_modes(outcomes: Any) -> None:
    for losses, reports, planned, _ in outcomes[0]:
        assert losses[0] == losses[1]
        assert [[batch.recompute for batch in step] for step in reports] == planned
    assert {mode for rank in outcomes[0] for step in rank[2] for mode in step} == set(MIXED)


def test_a_mode_that_a_model_cannot_apply_is_rejected_on_every_rank(outcomes: Any) -> None:
    for *_, message in outcomes[0]:
        assert "JetMoeForCausalLM cannot apply recomputation mode: none+1" in message
        assert "Plan with none, attention_core, mlp" in message
