"""Layers under each recomputation mode: equal gradients, tensors kept and computed again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from moded_plans import set_modes
from random_plans import one_pipeline_plan

from seqplan import Scheme, rank_view
from seqplan.plans.recomputation import MODES, join_mode
from seqplan.runtime.errors import KeptResultChanged, PlanError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.recomputation import LAYER_MODES, check_modes, keep_result, run_last, run_part
from seqplan.runtime.saved_tensors import SavedBytes
from seqplan.runtime.sequence_parallel.context import AttentionContext, local_context
from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel

LAYERS, LENGTHS = 3, [70, 1, 50]


@dataclass
class CountingKernel(CpuKernel):
    """Attention on a CPU that counts its forwards."""

    calls: list[int] = field(default_factory=lambda: [0])

    def forward(self, *arguments: Any) -> Iterator[Any]:
        self.calls[0] += 1
        return super().forward(*arguments)


def llama(dtype: torch.dtype = torch.float32, **changes: Any) -> Llama:
    torch.manual_seed(1)
    sizes = {"hidden": 64, "layers": LAYERS, "heads": 4, "kv_heads": 2, "ffn": 176, "vocab": 61}
    return Llama(ModelConfig(**{**sizes, **changes})).to(dtype)


def train(model: Llama, context: AttentionContext) -> tuple[int, list[torch.Tensor]]:
    """Saved bytes and gradients of a micro-batch."""
    tokens = torch.arange(sum(LENGTHS)) * 7 % 61
    saved = SavedBytes(model.parameters())
    model.zero_grad()
    with saved.hooks():
        loss = torch.nn.functional.cross_entropy(model(tokens, context).float(), tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    return saved.total, [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_equal_in_every_mode_and_fewer_bytes_are_kept(dtype: torch.dtype) -> None:
    model, context = llama(dtype), local_context(LENGTHS)
    expected, gradients = train(model, replace(context, recompute="none"))
    saved = {}
    for mode in (None, *MODES):
        saved[mode], same = train(model, replace(context, recompute=mode))
        assert all(map(torch.equal, same, gradients)), mode
    assert saved[None] == expected == saved["none"]
    assert saved["none"] > saved["attention_core"] > saved["elementwise"] > saved["half_products"]
    assert saved["half_products"] > saved["full"]
    assert saved["none"] > 1.5 * saved["mlp"] > 3 * saved["full"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
def test_offloaded_layers_have_equal_gradients_and_keep_nothing_here(
    mode: str, share: float
) -> None:
    model, context = llama(), local_context(LENGTHS)
    kept, gradients = train(model, replace(context, recompute=mode))
    saved, same = train(model, replace(context, recompute=join_mode(mode, share)))
    assert all(map(torch.equal, same, gradients))
    offloaded = {0.3: 1, 0.5: 2, 1.0: 3}[share]
    ends = kept - LAYERS * layer_bytes(mode)
    # What all layers share, such as rotations, is kept by those that stay.
    shared = 2 * 121 * 8 * 4 + 1000
    left = (LAYERS - offloaded) * layer_bytes(mode)
    assert saved - ends == pytest.approx(left, rel=0.02, abs=shared)


def layer_bytes(mode: str) -> int:
    """Saved bytes of one layer."""
    context = replace(local_context(LENGTHS), recompute=mode)
    few, more = (train(llama(layers=layers), context)[0] for layers in (1, 2))
    return more - few


def test_attention_is_computed_again_in_two_modes_alone() -> None:
    calls = {}
    for mode in MODES:
        kernel = CountingKernel()
        train(llama(), replace(local_context(LENGTHS), recompute=mode, kernel=kernel))
        calls[mode] = kernel.calls[0]
    again = dict.fromkeys(("attention_core", "full"), 2 * LAYERS)
    assert calls == {**dict.fromkeys(MODES, LAYERS), **again}


@pytest.mark.parametrize("mode", MODES)
def test_products_are_computed_again_as_the_mode_prescribes(mode: str) -> None:
    """Of a layer's four products: the last is read by none, and needed in no mode."""
    from torch.utils.flop_counter import FlopCounterMode

    def count(mode: str) -> int:
        with FlopCounterMode(display=False) as counter:
            train(llama(), replace(local_context(LENGTHS), recompute=mode))
        operations: Any = counter.get_flop_counts()["Global"]
        return int(operations[torch.ops.aten.mm])

    tokens, config = sum(LENGTHS), llama().config
    qkv, output, gate_up = 64 * 128, 64 * 64, 64 * 2 * config.ffn
    again = {"half_products": output, "mlp": gate_up, "full": qkv + output + gate_up}
    assert count(mode) - count("none") == 2 * tokens * LAYERS * again.get(mode, 0)


def test_a_model_without_modes_of_micro_batches_keeps_its_setting() -> None:
    bytes_by_setting = {
        mode: train(llama(recompute=mode), local_context(LENGTHS))[0] for mode in MODES
    }
    by_context = {
        mode: train(llama(), replace(local_context(LENGTHS), recompute=mode))[0] for mode in MODES
    }
    assert bytes_by_setting == by_context
    overruled = replace(local_context(LENGTHS), recompute="none")
    assert train(llama(recompute="full"), overruled)[0] == by_context["none"]


@pytest.mark.parametrize("mode", MODES)
def test_dropout_is_that_of_the_forward(mode: str) -> None:
    weight = torch.randn(32, 32, requires_grad=True)

    def layer(hidden: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(hidden @ weight, 0.5).relu()
        return torch.nn.functional.dropout(run_last(torch.mm, hidden, weight), 0.5)

    def gradient(mode: str) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        hidden = torch.ones(40, 32, requires_grad=True)
        loss = run_part("layer", mode, layer, run_part("feed_forward", mode, layer, hidden))
        (result,) = torch.autograd.grad(loss.square().sum(), weight)
        return result, float(torch.rand(()))

    expected, following = gradient("none")
    result, same = gradient(mode)
    assert torch.equal(result, expected)
    assert same == following  # of the next micro-batch


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("mode", [*MODES, "elementwise+1"])
def test_gradients_of_compiled_layers_are_those_of_others(mode: str) -> None:
    context = replace(local_context(LENGTHS), recompute=mode)
    model = llama(layers=1)
    saved, gradients = train(model, context)
    torch._dynamo.reset()
    for layer in model.layers:
        layer.compile(backend="eager")
    again, same = train(model, context)
    if mode in LAYER_MODES:  # in others the compiler decides on the tensors that a graph keeps
        assert saved == again
    assert all(map(torch.equal, same, gradients))


def test_products_of_low_rank_are_not_kept() -> None:
    down, up = torch.randn(64, 2, requires_grad=True), torch.randn(2, 64, requires_grad=True)

    def count(mode: str) -> int:
        saved = SavedBytes([down, up])
        with saved.hooks():
            run_part("layer", mode, lambda x: (x.sin() @ down @ up).sin(), torch.randn(100, 64))
        return saved.total // 400

    assert count("elementwise") == 64 + 2
    assert count("full") == 64


@pytest.mark.parametrize(
    ("mode", "again"),
    [
        ("elementwise", []),
        ("half_products", ["second"]),
        ("full", ["first", "second", "core", "third"]),
    ],
)
def test_results_that_are_kept_by_hand_are_not_computed_again(mode: str, again: list[str]) -> None:
    """As torch's products are, of which half are kept."""
    weight = torch.randn(8, 8, requires_grad=True)
    calls: list[str] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, name: str, kind: Any) -> torch.Tensor:
            def compute() -> tuple[torch.Tensor]:
                calls.append(name)
                return (x @ torch.ones(8, 8),)

            (result,) = keep_result(kind, compute)
            ctx.save_for_backward(x)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            (x,) = ctx.saved_tensors
            return (gradients[0] * x), None, None

    def layer(x: torch.Tensor) -> torch.Tensor:
        apply: Any = Product.apply
        x = apply(x * weight, "first", "product").sin()
        x = apply(x, "second", "product").sin()
        x = apply(x, "core", "attention").sin()
        return apply(x, "third", "product")

    def gradient(mode: str) -> torch.Tensor:
        calls.clear()
        loss = run_part("layer", mode, layer, torch.eye(8)).sum()
        (result,) = torch.autograd.grad(loss, weight)
        return result

    expected = gradient("none")
    assert torch.equal(gradient(mode), expected)
    assert calls == ["first", "second", "core", "third", *again]


@pytest.mark.parametrize("mode", ["elementwise", "half_products"])
def test_a_kept_product_changed_in_place_is_detected_in_forward(mode: str) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    with pytest.raises(KeptResultChanged, match=r"\(5, 8\)"):
        run_part("layer", mode, lambda x: (x @ weight).add_(1.0).relu(), torch.randn(5, 8))


def test_unknown_modes_are_rejected() -> None:
    identity: Callable[[int], int] = lambda x: x  # noqa: E731
    with pytest.raises(ValueError, match="unknown recomputation mode: some"):
        run_part("layer", "some", identity, 1)
    view = rank_view(set_modes(one_pipeline_plan(Scheme(), [3, 4]), ["mlp"]), 0)
    check_modes(view, ["mlp"], "Llama")
    with pytest.raises(PlanError) as raised:
        check_modes(view, ["full", "none"], "GPT")
    assert str(raised.value) == (
        "step 0, pipeline 0: GPT cannot apply recomputation mode: mlp. Plan with none, full"
    )
