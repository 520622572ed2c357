"""Measuring a whole design, sample by sample, with a file that remembers what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch
import torch.distributed as dist

from seqplan.plans.scheme import Scheme
from seqplan.profiler.fit.pooling import pooled, steadied
from seqplan.profiler.fit.samples import Sample, SampleFile, Setting
from seqplan.profiler.measure.bench import Bench, Measurer
from seqplan.profiler.measure.design import Point
from seqplan.profiler.measure.device import device_name
from seqplan.profiler.measure.lost_ranks import Alarm
from seqplan.profiler.measure.saved_memory import CudaAllocator
from seqplan.profiler.measure.tensor_parallel import TensorRanks, tensor_ranks
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.training.model import ModelConfig


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
    task: Task,
    path: Path,
    rank: int,
    world_size: int,
    report: Report | None = None,
    complain: Callable[[str], None] | None = None,
) -> tuple[Setting, Sequence[Sample]]:
    """Measure what the file of samples lacks; the setting and, on rank 0, all samples.

    These are ``steadied`` and ``pooled``; other ranks have none to return. Longer micro-batches of
    a scheme that has run out of memory are not tried. ``SampleError`` on rank 0 for a file of
    another setting. ``complain``: told why, on rank 0, before ``Alarm`` ends all ranks.
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
    todo, fits = _agreed(None if file is None else _left(wanted, file.samples), groups)

    def give_up(index: int, lacking: int) -> None:
        turn, scheme, point = wanted[index]
        assert file is not None
        file.add(Sample.out_of_memory(scheme, point.role, point.lengths, task.layers, turn))
        if complain is not None:
            complain(
                f"{scheme}, {sum(point.lengths):,} tokens: rank {lacking} is out of memory while "
                "others wait for it; kept as out of memory: start again to go on with the rest"
            )

    alarm = None
    if groups is not None:
        alarm = Alarm(dist.distributed_c10d._get_default_store(), rank, give_up)
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
        out_of_memory=(lambda: None) if alarm is None else alarm.sound,
    )
    measurer = Measurer(bench)
    weights = [_weight(point, scheme) for _, scheme, point in (wanted[index] for index in todo)]
    started, done = time.monotonic(), 0.0
    for count, index in enumerate(todo):
        turn, scheme, point = wanted[index]
        done += weights[count]
        if sum(point.lengths) >= fits.get(scheme, inf):
            continue
        repeats = task.repeats * (turn + 1) // rounds - task.repeats * turn // rounds
        with nullcontext() if alarm is None else alarm.over(index):
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


def _left(
    wanted: Sequence[tuple[int, Scheme, Point]], samples: Sequence[Sample]
) -> tuple[list[int], dict[Scheme, float]]:
    """What has not been measured, by index, and by scheme the tokens that have not fitted."""
    has = {(each.turn, each.scheme, Point(each.role, each.lengths)) for each in samples}
    fits: dict[Scheme, float] = {}
    for each in samples:
        if each.oom:
            fits[each.scheme] = min(each.tokens, fits.get(each.scheme, inf))
    return [index for index, each in enumerate(wanted) if each not in has], fits


def _agreed(
    left: tuple[list[int], dict[Scheme, float]] | None, groups: Communicators | None
) -> tuple[list[int], dict[Scheme, float]]:
    """Rank 0's on every rank."""
    shared = [left]
    if groups is not None:
        dist.broadcast_object_list(shared, 0, group=groups.control)
    assert shared[0] is not None
    return shared[0]
