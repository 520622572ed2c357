"""Measuring a whole design, sample by sample, with a file that records all samples."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from seqplan.costs.architecture import Architecture
from seqplan.costs.fit.pooling import pool_samples, rescale_to_usual_speed
from seqplan.costs.fit.sample_file import SampleFile
from seqplan.costs.fit.samples import SEQUENCE_PARALLEL, MeasuredOn, Sample
from seqplan.costs.fit.sync_samples import SyncSample
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.device import device_name
from seqplan.profiler.measure.lost_ranks import Alarm
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.saved_memory import CudaAllocator
from seqplan.profiler.measure.sync import list_sync_measurements, measure_sync
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.sequence_parallel.kernels import (
    Kernel,
    choose_kernel_for_heads,
    find_kernel,
)
from seqplan.runtime.states.rails import make_rail
from seqplan.runtime.tensor_parallel.groups import TensorGroups


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure on which device; ``layers`` of the model are run.

    ``repeats``: of each point, at most, over all rounds; ``processor_time``: count processor time
    of CPU ranks, for ranks that share cores: the time of a rank that has a core without others;
    ``kernel``: attention kernel by name, the first that supports the model's heads if None;
    ``expert_parallel``: ranks that hold all experts together.
    """

    config: ModelConfig
    layers: int
    device: str
    dtype: str
    schemes: tuple[Scheme, ...]
    points: tuple[DesignPoint, ...]
    repeats: int
    processor_time: bool = False
    kernel: str | None = None
    expert_parallel: int = 1

    def choose_kernel(self, device: torch.device) -> Kernel:
        """Return the attention kernel; ``ValueError`` if the one by name does not support it."""
        return choose_kernel_for_heads(
            self.config.head_dim,
            getattr(torch, self.dtype),
            device,
            None if self.kernel is None else find_kernel(self.kernel),
        )


ALLOCATOR_SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
"""Environment variables from which torch reads them, when it first allocates."""

HARMLESS = (
    "Attempting to run cuBLAS",  # backward's thread takes up the device's context
    "Synchronization debug mode",  # which finds most waits, not all
)
"""Beginnings of torch's warnings on CUDA that call for nothing."""

ROUNDS = 3
"""Times that the whole design is gone through; see ``pool_samples``."""

Value = TypeVar("Value")

Report = Callable[[int, int, float, Sample], None]
"""Done, of how many, seconds left by estimate, the newest sample; called on rank 0 only."""

Measured = tuple[MeasuredOn, Sequence[Sample], Sequence[SyncSample]]
"""On what, the samples, and the syncs that were measured if there are several ranks."""


def start_ranks(device: str) -> tuple[int, int]:
    """Join the ranks where torchrun has started several; return rank and world size.

    On CUDA the allocator's segments grow from now on, unless the environment has its settings:
    else memory is left over in pieces between micro-batches of different sizes.
    """
    if device == "cuda" and not ALLOCATOR_SETTINGS & os.environ.keys():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    for beginning in HARMLESS:
        warnings.filterwarnings("ignore", message=beginning)
    if not dist.is_torchelastic_launched():
        return 0, 1
    if device == "cuda":
        dist.init_process_group("nccl", device_id=_device(device))
    else:
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def measure(
    task: Task,
    path: Path,
    rank: int,
    world_size: int,
    report: Report | None = None,
    complain: Callable[[str], None] | None = None,
) -> Measured:
    """Measure samples that the file lacks; return the setting and, on rank 0, all samples.

    Samples are ``rescale_to_usual_speed`` and ``pool_samples``; other ranks have nothing to return.
    Longer micro-batches of a scheme that has run out of memory are not tried. ``SampleError`` on
    rank 0 for a file of another device, dtype or model. ``complain``: called with the reason, on
    rank 0, before ``Alarm`` ends all ranks.
    """
    run = _Run(task, path, rank, world_size, complain)
    with nullcontext() if run.file is None else run.file:
        _measure_all(run, report)
        _measure_syncs(run)
    if run.file is None:
        return run.measured_on, (), ()
    return (
        run.measured_on,
        tuple(pool_samples(rescale_to_usual_speed(run.file.samples))),
        tuple(run.file.syncs),
    )


def _measure_all(run: _Run, report: Report | None) -> None:
    weights = [run.wanted[index].weight for index in run.todo]
    started, measured_weight = time.monotonic(), 0.0
    for count, (index, weight) in enumerate(zip(run.todo, weights, strict=True), start=1):
        measured_weight += weight
        sample = run.measure(index)
        if sample is not None and run.file is not None and report is not None:
            left_s = (time.monotonic() - started) * (sum(weights) / measured_weight - 1)
            report(count, len(run.todo), left_s, sample)


def _measure_syncs(run: _Run) -> None:
    """Measure the sync of every layout, if there are several ranks to synchronize between."""
    if run.groups is None:
        return
    rail = make_rail(run.groups) if run.syncs else None
    for key in run.syncs:
        sync = measure_sync(run.bench, key, run.groups.states, rail)
        if run.file is not None:
            run.file.add_sync(sync)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A micro-batch to measure under a scheme, in the round ``turn``, ``repeats`` times at most."""

    turn: int
    scheme: Scheme
    point: DesignPoint
    repeats: int

    @property
    def tokens(self) -> int:
        """Tokens of the whole micro-batch."""
        return sum(self.point.lengths)

    @property
    def weight(self) -> float:
        """About how long it takes, in any unit: a floor, and work that grows with its lengths."""
        work = sum(length * (1 + length / 4096) for length in self.point.lengths)
        return 1000.0 + work / self.scheme.gpus


def _all_wanted(task: Task) -> list[_Wanted]:
    """List the whole design per round, a point's repeats spread over rounds."""
    rounds = min(ROUNDS, task.repeats)
    return [
        _Wanted(
            turn,
            scheme,
            point,
            task.repeats * (turn + 1) // rounds - task.repeats * turn // rounds,
        )
        for turn in range(rounds)
        for point in task.points
        for scheme in task.schemes
    ]


class _Run:
    """A partly measured design: the samples that are left, and their setup; all ranks make one.

    ``todo``: indexes of ``wanted``; ``limits``: by scheme the tokens that have not fitted;
    ``syncs``: those still to be measured; ``file`` on rank 0 only; ``groups`` and ``alarm``
    if there are several ranks.
    """

    def __init__(
        self,
        task: Task,
        path: Path,
        rank: int,
        world_size: int,
        complain: Callable[[str], None] | None,
    ) -> None:
        device = _device(task.device)
        kernel = task.choose_kernel(device)
        self.groups = groups = Communicators.create() if world_size > 1 else None
        self.measured_on = _describe_hardware(task, device, kernel)
        self.file = file = SampleFile(path, self.measured_on) if rank == 0 else None
        self.wanted = wanted = _all_wanted(task)
        left = None if file is None else _left(wanted, file.samples)
        self.todo, self.limits = _of_first_rank(left, groups)

        def give_up(index: int, lacking: int) -> None:
            assert file is not None
            one = wanted[index]
            role, lengths = one.point.role, one.point.lengths
            file.add(Sample.out_of_memory(one.scheme, role, lengths, task.layers, one.turn))
            if complain is not None:
                complain(
                    f"{one.scheme}, {one.tokens:,} tokens: rank {lacking} is out of memory while "
                    "others wait for it; kept as out of memory: start again to go on with the rest"
                )

        self.alarm = None
        if groups is not None:
            self.alarm = Alarm(dist.distributed_c10d._get_default_store(), rank, give_up)
        self.bench = Bench(
            config=task.config,
            layers=task.layers,
            device=device,
            dtype=getattr(torch, task.dtype),
            rank=rank,
            world_size=world_size,
            attention_group=None if groups is None else groups.attention,
            control_group=None if groups is None else groups.control,
            tensor_groups=None
            if groups is None
            else TensorGroups(
                groups.tensor,
                {scheme.tp for scheme in task.schemes},
                by_messages=device.type == "cpu",
            ),
            allocator=None if device.type == "cpu" else CudaAllocator(device),
            out_of_memory=(lambda: None) if self.alarm is None else self.alarm.sound,
            processor_time=task.processor_time,
            kernel=kernel,
            blocks=None if groups is None else ExpertBlocks.create(task.expert_parallel, groups),
        )
        known_syncs = None if file is None else {sync.key for sync in file.syncs}
        measured = _of_first_rank(known_syncs, groups)
        syncs = list_sync_measurements(task.schemes, self.bench)
        self.syncs = [key for key in syncs if key not in measured]
        self.measurer = Measurer(self.bench)

    def measure(self, index: int) -> Sample | None:
        """Measure and keep one micro-batch; None if a shorter one of its scheme did not fit."""
        wanted = self.wanted[index]
        if wanted.tokens >= self.limits.get(wanted.scheme, inf):
            return None
        with nullcontext() if self.alarm is None else self.alarm.over(index):
            sample = self.measurer.measure(
                wanted.scheme, wanted.point, turn=wanted.turn, repeats=wanted.repeats
            )
        if sample.oom:
            self.limits[wanted.scheme] = wanted.tokens
        if self.file is not None:
            self.file.add(sample)
        return sample


def _describe_hardware(task: Task, device: torch.device, kernel: Kernel) -> MeasuredOn:
    """Return the facts on which the samples of a task must agree."""
    config = task.config
    sizes = {name: getattr(config, name) for name in SIZES}
    experts = {}
    if config.experts:
        experts = {
            "expert_layers": config.layers,
            "experts": config.experts,
            "experts_per_token": config.experts_per_token,
            "expert_ffn": config.expert_ffn,
            "shared_ffn": config.ffn,
        }
        # No layer has this feed-forward; sizes state a width all the same.
        sizes["ffn"] = config.ffn or config.expert_ffn
    model = ModelSizes(
        **sizes,
        head_dim=config.head_dim,
        tied=config.tied,
        architecture=Architecture.split(experts)[0],
    )
    return MeasuredOn(
        device_name(device) + ", processor time" * task.processor_time,
        task.dtype,
        config.recompute,
        tuple(model.as_dict().items()),
        SEQUENCE_PARALLEL,
        kernel.name,
        task.expert_parallel,
    )


def _device(kind: str) -> torch.device:
    """Return the device of this rank, made the current one: its streams and events are meant."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _left(
    wanted: Sequence[_Wanted], samples: Sequence[Sample]
) -> tuple[list[int], dict[Scheme, float]]:
    """Return unmeasured samples by index, and the lengths that did not fit by scheme.

    In tokens.
    """
    known = {(sample.turn, sample.scheme, sample.role, sample.lengths) for sample in samples}
    limits: dict[Scheme, float] = {}
    for sample in samples:
        if sample.oom:
            limits[sample.scheme] = min(sample.tokens, limits.get(sample.scheme, inf))
    todo = [
        index
        for index, point in enumerate(wanted)
        if (point.turn, point.scheme, point.point.role, point.point.lengths) not in known
    ]
    return todo, limits


def _of_first_rank(value: Value | None, groups: Communicators | None) -> Value:
    """Give rank 0's to every rank."""
    shared = [value]
    if groups is not None:
        dist.broadcast_object_list(shared, 0, group=groups.control)
    assert shared[0] is not None
    return shared[0]
