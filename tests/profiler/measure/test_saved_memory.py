"""Bytes of activations, counted on real layers, on fake tensors and by the analytic model."""

import gc
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from seqplan.costs.analytic.memory import layer_activation_bytes
from seqplan.costs.fit.pooling import pool_samples
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.saved_memory import count_saved, count_saved_bytes, peak_bytes
from seqplan.profiler.measure.stage import Call, MeasuredStage, Neighbours
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.saved_tensors import SavedBytes, identify_storage
from seqplan.runtime.sequence_parallel.context import local_context
from seqplan.runtime.tensor_parallel.groups import TensorGroups

SIZES = {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "ffn": 704, "vocab": 500}
TOKENS = 192
CPU = torch.device("cpu")


def bytes_kept(
    recompute: str, layers: int, *, fake: bool, dtype: torch.dtype
) -> tuple[float, float]:
    """Bytes per token kept by the layers and by the ends of the model."""
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        config = ModelConfig(**SIZES, recompute=recompute)
        stage = MeasuredStage(config, layers, None, CPU, dtype)
        context = local_context([TOKENS])
        ends = stage.ends_call(context, Neighbours(None, None))
        return (
            count_saved_bytes(stage.layers_call(context), stage.parameters()) / TOKENS,
            count_saved_bytes(ends, stage.parameters()) / TOKENS,
        )


@pytest.mark.parametrize("recompute", MODES)
def test_counting_without_backward_leaves_nothing_behind(recompute: str) -> None:
    """By reference counts alone: a device is full before the collector of cycles runs."""
    config = ModelConfig(**SIZES, recompute=recompute)
    stage = MeasuredStage(config, 2, None, CPU, torch.float32)
    context = local_context([TOKENS])
    calls = stage.layers_call(context), stage.ends_call(context, Neighbours(None, None))
    for call in calls:
        count_saved_bytes(call, stage.parameters())  # modules are imported, and leave frames
    parameters = {identify_storage(parameter) for parameter in stage.parameters()}
    gc.disable()
    try:
        for call in calls:
            storages = count_saved(call, stage.parameters())._seen - parameters
            alive = [storage for storage in storages if not storage.expired()]
            assert len(alive) < len(storages)
            assert len(alive) <= 1
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", MODES)
def test_fake_tensors_keep_as_much_as_real_ones(recompute: str, dtype: torch.dtype) -> None:
    real = bytes_kept(recompute, 2, fake=False, dtype=dtype)
    assert bytes_kept(recompute, 2, fake=True, dtype=dtype) == real


@pytest.mark.parametrize("recompute", MODES)
def test_the_analytic_model_counts_saved_activations(recompute: str) -> None:
    sizes = ModelSizes.from_mapping(SIZES)
    many, few = (
        bytes_kept(recompute, layers, fake=True, dtype=torch.bfloat16)[0] for layers in (6, 2)
    )
    counted = (many - few) / 4
    assert counted == pytest.approx(layer_activation_bytes(sizes, recompute, 1), rel=0.02)


def kept_by_degree(rank: int, world_size: int) -> dict[int, int]:
    """Bytes that this rank's layers keep of a micro-batch, by tp."""
    config = ModelConfig(**{**SIZES, "kv_heads": 8}, recompute="none", tied=False)
    groups = TensorGroups(dist.group.WORLD, (2, 4, 8))
    by_degree = {}
    for tp in (1, 2, 4, 8):
        first = rank // tp * tp
        group = groups.of(tuple(range(first, first + tp)))
        stage = MeasuredStage(config, 1, group, CPU, torch.bfloat16)
        by_degree[tp] = count_saved_bytes(
            stage.layers_call(local_context([TOKENS])), stage.parameters()
        )
    return by_degree


def test_a_rank_keeps_its_part_of_the_activations() -> None:
    """1/tp of them, as the memory model has it: also what tp does not cut, norms and residuals."""
    for by_degree in run_ranks(kept_by_degree, 8):
        for tp in (2, 4, 8):
            assert by_degree[tp] == pytest.approx(by_degree[1] / tp, rel=0.06), tp


def test_a_layer_that_is_computed_again_counts_once() -> None:
    """Full recomputation keeps inputs, and while backward runs, all of one layer."""
    whole, ends = bytes_kept("none", 1, fake=True, dtype=torch.float32)
    config = ModelConfig(**SIZES, recompute="full")
    measurer, point = (
        Measurer(Bench(config, 3, CPU, torch.float32, 0, 1)),
        DesignPoint("fit", (TOKENS,)),
    )
    sample = measurer.measure(Scheme(), point, repeats=3)
    inputs = 4 * SIZES["hidden"]
    assert sample.layers_saved_bytes / TOKENS == pytest.approx(3 * inputs, rel=0.01)
    more = (sample.saved_bytes - sample.layers_saved_bytes) / TOKENS
    assert more == pytest.approx(ends + whole - inputs, rel=0.01)
    assert sample.layers_peak_bytes is None
    # Bytes are counted once, times in every round.
    later = measurer.measure(Scheme(), point, turn=1, repeats=1)
    assert (later.turn, later.saved_bytes, len(later.layers_ms)) == (1, 0, 1)
    (both,) = pool_samples([sample, later])
    assert both.saved_bytes == sample.saved_bytes
    assert len(both.layers_ms) == len(sample.layers_ms) + 1
    assert len(both.layers_yardstick_ms) == len(both.layers_ms)
    assert len(both.ends_yardstick_ms) == len(both.ends_ms)
    assert min(both.layers_yardstick_ms + both.ends_yardstick_ms) > 0


def test_a_storage_counts_once_and_parameters_not() -> None:
    parameter = torch.ones(8, requires_grad=True)
    tensor = torch.ones(8, requires_grad=True)
    counted = SavedBytes([parameter])
    with counted.hooks():
        product = (tensor[:4] * tensor[4:]).sum() + (tensor * parameter).sum()
    product.backward()
    assert counted.total == 8 * 4


class Tensors:
    """An allocator of the tensors that a call reports as held."""

    def __init__(self, resident: int) -> None:
        self.held = self.most = resident

    def current_bytes(self) -> int:
        return self.held

    def reset_peak(self) -> None:
        self.most = self.held

    def peak(self) -> int:
        return self.most

    def peak_reserved_bytes(self) -> int:
        return self.most + 64

    def take(self, count: int) -> None:
        self.held += count
        self.most = max(self.most, self.held)


def test_the_peak_is_above_resident_memory() -> None:
    allocator = Tensors(1000)
    allocator.take(5000)  # an earlier peak, forgotten
    allocator.take(-5000)

    def forward() -> Tensor:
        allocator.take(300)
        return torch.zeros(())

    def backward(out: Tensor) -> None:
        allocator.take(50)
        allocator.take(-350)

    assert peak_bytes(Call(forward, backward), allocator) == 350
    assert allocator.held == 1000


def test_peaks_are_read_where_there_is_an_allocator() -> None:
    """Of every call, next to what autograd keeps, and once its gradients are there."""
    config = ModelConfig(**SIZES)
    allocator = Tensors(1000)
    reset_at: list[int] = []
    allocator.reset_peak = lambda: reset_at.append(1)  # type: ignore[method-assign]
    allocator.most = 1700
    bench = Bench(config, 2, CPU, torch.float32, 0, 1, allocator=allocator)
    sample = Measurer(bench).measure(Scheme(), DesignPoint("fit", (TOKENS,)))
    assert len(reset_at) == 2
    assert (sample.layers_peak_bytes, sample.ends_peak_bytes) == (700, 700)
    assert (sample.allocated_bytes, sample.reserved_bytes) == (1700, 1764)
    assert sample.saved_bytes > sample.layers_saved_bytes > 0
