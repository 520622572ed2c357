"""Measuring micro-batches on a device: real layers, forward and backward, under real schemes.

The only part of the profiler that needs torch and the runtime. Alone it measures schemes of one
rank; started by torchrun, those of as many ranks as there are: a scheme runs on the first ranks,
the others wait. A micro-batch's time is that of its slowest rank.

A few layers stand for all: their time is multiplied, while embedding, head and loss are measured
once by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Planner
from seqplan.plans.rank_view import rank_view
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measured.design import Point
from seqplan.profiler.measured.samples import Sample
from seqplan.runtime.model import DecoderLayer, ModelConfig, rotations, token_loss
from seqplan.runtime.peers import Peers
from seqplan.runtime.unified_attention import AttentionContext, attention, attention_context

WARM_UP = 2
LEAST_REPEATS, MOST_REPEATS = 5, 25
ENOUGH_S = 0.75
"""A point is repeated until it has taken this long, within the limits above."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured on: ``layers`` of the model are run; groups are None on a single rank."""

    config: ModelConfig
    layers: int
    device: torch.device
    dtype: torch.dtype
    rank: int
    world_size: int
    attention_group: dist.ProcessGroup | None
    control_group: dist.ProcessGroup | None


def device_name(device: torch.device) -> str:
    """What the samples say they were measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {torch.get_num_threads()} threads a rank"


def capacity_bytes(device: torch.device) -> int:
    """Memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    with open("/proc/meminfo", encoding="utf-8") as file:
        kibibytes = next(int(line.split()[1]) for line in file if line.startswith("MemTotal"))
    return kibibytes * 1024


class Measurer:
    """Runs micro-batches of one model; every rank makes one and measures the same points."""

    def __init__(self, bench: Bench) -> None:
        torch.manual_seed(0)
        config = bench.config
        self._bench = bench
        self._layers = nn.ModuleList(
            DecoderLayer(config, attention) for _ in range(bench.layers)
        ).to(bench.device, bench.dtype)
        self._embedding = nn.Embedding(config.vocab, config.hidden)
        self._norm = nn.RMSNorm(config.hidden, eps=config.eps)
        self._head = nn.Linear(config.hidden, config.vocab, bias=False)
        self._ends = nn.ModuleList((self._embedding, self._norm, self._head)).to(
            bench.device, bench.dtype
        )
        self._peers = Peers(bench.attention_group)
        self._kept = {
            parameter.untyped_storage().data_ptr()
            for module in (self._layers, self._ends)
            for parameter in module.parameters()
        }

    def measure(self, scheme: Scheme, point: Point) -> Sample:
        """One sample; out of memory on any rank is a sample too."""
        try:
            sample = self._measured(scheme, point)
            failed = 0.0
        except torch.OutOfMemoryError:
            sample, failed = None, 1.0
        if self._largest(failed) or sample is None:
            if self._bench.device.type == "cuda":
                torch.cuda.empty_cache()
            empty: tuple[float, ...] = ()
            layers = self._bench.layers
            return Sample(
                scheme, point.role, point.lengths, layers, empty, empty, empty, 0, 0, oom=True
            )
        return sample

    def _measured(self, scheme: Scheme, point: Point) -> Sample:
        context = self._context(scheme, point.lengths)
        layers = self._layers_call(context)
        ends = self._ends_call(context)
        layers_saved, recomputed = self._saved(layers)
        ends_saved, _ = self._saved(ends)
        layers_ms, forward_ms = self._times(layers)
        ends_ms, _ = self._times(ends)
        return Sample(
            scheme=scheme,
            role=point.role,
            lengths=point.lengths,
            layers=self._bench.layers,
            layers_ms=layers_ms,
            ends_ms=ends_ms,
            forward_ms=forward_ms,
            saved_bytes=int(
                self._largest(layers_saved + ends_saved + recomputed / self._bench.layers)
            ),
            layers_saved_bytes=int(self._largest(layers_saved)),
        )

    def _context(self, scheme: Scheme, lengths: Sequence[int]) -> AttentionContext | None:
        """None on a rank that the scheme does not use."""
        if self._bench.rank >= scheme.gpus:
            return None
        plan = _plan(scheme, lengths, self._bench.world_size)
        (pipeline,) = rank_view(plan, self._bench.rank).pipelines
        return attention_context(
            pipeline, pipeline.micro_batches[0], self._peers, device=self._bench.device
        )

    def _layers_call(self, context: AttentionContext | None) -> _Call | None:
        if context is None:
            return None
        bench = self._bench
        tokens = context.positions.shape[0]
        hidden = torch.randn(tokens, bench.config.hidden, device=bench.device, dtype=bench.dtype)
        hidden.requires_grad_()
        gradient = torch.randn_like(hidden)

        def forward() -> Tensor:
            rotation = rotations(context.positions, bench.config, bench.dtype)
            out: Tensor = hidden
            for layer in self._layers:
                out = layer(out, rotation, context)
            return out

        return _Call(forward, lambda out: torch.autograd.backward(out, gradient))

    def _ends_call(self, context: AttentionContext | None) -> _Call | None:
        if context is None:
            return None
        tokens = torch.randint(
            self._bench.config.vocab, context.positions.shape, device=self._bench.device
        )

        def forward() -> Tensor:
            logits: Tensor = self._head(self._norm(self._embedding(tokens)))
            return token_loss(logits, tokens)

        return _Call(forward, torch.autograd.backward)

    def _times(self, call: _Call | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Milliseconds of forward and backward, and of forward, of the slowest rank each time."""
        for _ in range(WARM_UP):
            took, _ = self._once(call)
        # On every rank the same number, from the time that the slowest rank sees.
        first_s = self._largest(took) / 1e3
        repeats = int(np.clip(ENOUGH_S / max(first_s, 1e-9), LEAST_REPEATS, MOST_REPEATS))
        pairs = [self._once(call) for _ in range(repeats)]
        return (
            tuple(self._largest(whole) for whole, _ in pairs),
            tuple(self._largest(forward) for _, forward in pairs),
        )

    def _once(self, call: _Call | None) -> tuple[float, float]:
        if self._bench.control_group is not None:
            dist.barrier(group=self._bench.control_group)
        if call is None:
            return 0.0, 0.0
        clock = _Clock(self._bench.device)
        started = clock.mark()
        result = call.forward()
        between = clock.mark()
        call.backward(result)
        ended = clock.mark()
        self._clear()
        return clock.ms(started, ended), clock.ms(started, between)

    def _clear(self) -> None:
        for module in (self._layers, self._ends):
            module.zero_grad(set_to_none=True)

    def _saved(self, call: _Call | None) -> tuple[int, int]:
        """Bytes kept for backward, and bytes that backward computes again, on this rank."""
        if call is None:
            return 0, 0
        kept, again = _SavedBytes(self._kept), _SavedBytes(self._kept)
        with kept.hooks():
            result = call.forward()
        with again.hooks():
            call.backward(result)
        self._clear()
        return kept.total, again.total

    def _largest(self, value: float) -> float:
        """Over all ranks."""
        if self._bench.control_group is None:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._bench.control_group)
        return float(tensor.item())


@dataclass(frozen=True, slots=True)
class _Call:
    """A computation in its two halves."""

    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], None]


class _Clock:
    """Device events on CUDA, the wall elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def mark(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms(self, start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
        if isinstance(start, float) or isinstance(end, float):
            return (end - start) * 1e3  # type: ignore[operator]
        end.synchronize()
        return float(start.elapsed_time(end))


class _SavedBytes:
    """Counts the storages that autograd keeps, each once, parameters apart."""

    def __init__(self, parameters: set[int]) -> None:
        self._seen = set(parameters)
        self.total = 0

    def hooks(self) -> AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


def _plan(scheme: Scheme, lengths: Sequence[int], world_size: int) -> Plan:
    """All sequences in one micro-batch on the first ranks."""
    positions = tuple(range(len(lengths)))
    batch = MicroBatch(positions, sum(lengths), scheme.padded_tokens(lengths), 1.0)
    pipelines = (PlannedPipeline(scheme, tuple(range(scheme.gpus)), (batch,), 1.0),)
    return Plan(
        step=0,
        planner=Planner("profile", 0, "none", None),
        world_size=world_size,
        ids=positions,
        lengths=tuple(lengths),
        tokens=sum(lengths),
        loss_tokens=sum(lengths),
        pipelines=pipelines,
        idle_ranks=tuple(range(scheme.gpus, world_size)),
        groups=process_groups(pipelines),
        predicted_ms=1.0,
        lower_bound_ms=1.0,
        gap=0.0,
        selection=(),
    )
