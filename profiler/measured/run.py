"""Measuring a whole design, sample by sample, with a file that remembers what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch
import torch.distributed as dist

from seqplan.plans.scheme import Scheme
from seqplan.profiler.measured.accounting import CudaAllocator
from seqplan.profiler.measured.design import Point
from seqplan.profiler.measured.device import device_name
from seqplan.profiler.measured.measurer import Bench, Measurer
from seqplan.profiler.measured.pooling import pooled, steadied
from seqplan.profiler.measured.samples import Sample, SampleFile, Setting
from seqplan.profiler.measured.tensor_parallel import TensorRanks, tensor_ranks
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure on which device; ``layers`` of the model are run.

    ``repeats``: of each point, at most, over all rounds.
    """

    config: ModelConfig
    layers: int
    device: str
    dtype: str
    schemes: tuple[Scheme, ...]
    points: tuple[Point, ...]
    repeats: int


ROUNDS = 3
"""Times that the whole design is gone through; see ``pooled``."""

Report = Callable[[int, int, float, Sample], None]
"""Done, of how many, seconds left by estimate, the newest sample; called on rank 0 only."""


def start_ranks(device: str) -> tuple[int, int]:
    """Rank and world size; joins the ranks where torchrun has started several."""
    if not dist.is_torchelastic_launched():
        return 0, 1
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


def setting_of(task: Task, device: torch.device) -> Setting:
    """What the samples of a task must agree on."""
    config = task.config
    sizes = {
        "hidden": config.hidden,
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "ffn": config.ffn,
        "vocab": config.vocab,
    }
    return Setting(device_name(device), task.dtype, config.checkpointing, tuple(sizes.items()))


def measure(
    task: Task, path: Path, rank: int, world_size: int, report: Report | None = None
) -> tuple[Setting, Sequence[Sample]]:
    """Measure what the file of samples lacks; the setting and, on rank 0, all samples.

    These are ``steadied`` and ``pooled``; other ranks have none to return. Longer micro-batches of
    a scheme that has run out of memory are not tried. ``SampleError`` on rank 0 for a file of
    another setting.
    """
    local = (
        torch.device("cuda", rank % torch.cuda.device_count()) if task.device == "cuda" else None
    )
    device = local or torch.device("cpu")
    if local is not None:
        torch.cuda.set_device(local)  # the one whose streams and events are meant
    groups = Communicators.create() if world_size > 1 else None
    setting = setting_of(task, device)
    file = SampleFile(path, setting) if rank == 0 else None
    rounds = min(ROUNDS, task.repeats)
    wanted = [
        (turn, scheme, point)
        for turn in range(rounds)
        for point in task.points
        for scheme in task.schemes
    ]
    todo = _agreed(
        None
        if file is None
        else [
            index
            for index, (turn, scheme, point) in enumerate(wanted)
            if not file.has(scheme, point.role, point.lengths, turn)
        ],
        groups,
    )
    bench = Bench(
        config=task.config,
        layers=task.layers,
        device=device,
        dtype=getattr(torch, task.dtype),
        rank=rank,
        world_size=world_size,
        attention_group=None if groups is None else groups.attention,
        control_group=None if groups is None else groups.control,
        tensor_ranks=_tensor_ranks(task.schemes, rank, world_size),
        allocator=None if local is None else CudaAllocator(local),
    )
    measurer = Measurer(bench)
    fits: dict[Scheme, float] = {}  # fewer tokens than these
    weights = [_weight(point, scheme) for _, scheme, point in (wanted[index] for index in todo)]
    started, done = time.monotonic(), 0.0
    for count, index in enumerate(todo):
        turn, scheme, point = wanted[index]
        done += weights[count]
        if sum(point.lengths) >= fits.get(scheme, inf):
            continue
        repeats = task.repeats * (turn + 1) // rounds - task.repeats * turn // rounds
        sample = measurer.measure(scheme, point, turn=turn, repeats=repeats)
        if sample.oom:
            fits[scheme] = sum(point.lengths)
        if file is not None:
            file.add(sample)
            if report is not None:
                left = (time.monotonic() - started) * (sum(weights) / done - 1)
                report(count + 1, len(todo), left, sample)
    return setting, () if file is None else tuple(pooled(steadied(file.samples)))


def _tensor_ranks(schemes: Sequence[Scheme], rank: int, world_size: int) -> dict[int, TensorRanks]:
    """The tp groups of every degree, made by all ranks in one order."""
    found = {}
    for degree in sorted({scheme.tp for scheme in schemes if scheme.tp > 1}):
        ranks = tensor_ranks(degree, rank, world_size)
        if ranks is not None:
            found[degree] = ranks
    return found


def _weight(point: Point, scheme: Scheme) -> float:
    """About how long a point takes, in any unit: a floor, and work that grows with its lengths."""
    work = sum(length * (1 + length / 4096) for length in point.lengths) / scheme.gpus
    return 1000.0 + work


def _agreed(todo: list[int] | None, groups: Communicators | None) -> list[int]:
    """Rank 0's list on every rank."""
    if groups is None:
        assert todo is not None
        return todo
    shared: list[list[int] | None] = [todo]
    dist.broadcast_object_list(shared, 0, group=groups.control)
    assert shared[0] is not None
    return shared[0]
