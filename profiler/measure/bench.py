"""Measuring micro-batches: real layers, forward and backward, under real schemes.

Alone it measures schemes of one rank; started by torchrun, those of as many ranks as there are. As
many pipelines as there is room for run the same micro-batch at the same time, because in training
they do: links between ranks, and the cores of a CPU, are shared. Ranks left over wait. A
micro-batch's time is that of its slowest rank.

A few layers stand for all: their time is multiplied. Embedding, head and loss are measured once by
themselves, each on the stage that has it, with what a pipeline's stages send to each other.

Before and after each repetition every rank reads how fast its device is just then; see
``steadied``. Alone on a CPU it does so between forward and backward, too. Elsewhere that would be
felt: a CUDA device's host could not run ahead, and other ranks would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np
import torch
import torch.distributed as dist

from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Planner
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.profiler.fit.samples import Sample
from seqplan.profiler.measure.design import Point
from seqplan.profiler.measure.device import Clock
from seqplan.profiler.measure.saved_memory import Allocator, peak_bytes, saved_bytes
from seqplan.profiler.measure.stage import Call, Neighbours, Stage, with_transfers
from seqplan.profiler.measure.tensor_parallel import TensorRanks
from seqplan.profiler.measure.yardstick import Yardstick
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention_context
from seqplan.runtime.training.model import ModelConfig

WARM_UP = 2
"""Runs of a point that are not counted, in its first round; in later ones a single one is not."""

LEAST_REPEATS, MOST_REPEATS = 3, 9
ENOUGH_S = 0.25
"""A point is repeated until it has taken this long in a round, within the limits above."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured on: ``layers`` of the model are run; groups are None on a single rank.

    ``tensor_ranks``: this rank's tp group for each degree above 1; ``allocator``: read for the peak
    of every micro-batch, None where only what autograd keeps is counted; ``out_of_memory``: called
    when this rank is.
    """

    config: ModelConfig
    layers: int
    device: torch.device
    dtype: torch.dtype
    rank: int
    world_size: int
    attention_group: dist.ProcessGroup | None = None
    control_group: dist.ProcessGroup | None = None
    tensor_ranks: Mapping[int, TensorRanks] = field(default_factory=dict)
    allocator: Allocator | None = None
    out_of_memory: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Work:
    """What this rank runs of a micro-batch: its stage and the calls on it.

    ``alone``: the stage's end without the transfers; ``whole``: a layer without checkpointing.
    """

    stage: Stage
    layers: Call
    whole: Call | None
    alone: Call
    ends: Call


class Measurer:
    """Runs micro-batches of one model; every rank makes one and measures the same points."""

    def __init__(self, bench: Bench) -> None:
        torch.manual_seed(0)
        self._bench = bench
        self._peers = Peers(bench.attention_group)
        self._yardstick = Yardstick(bench.device, bench.dtype)
        self._stages: dict[int, Stage] = {}
        """By tp degree, made when first needed."""

    def measure(
        self, scheme: Scheme, point: Point, *, turn: int = 0, repeats: int = MOST_REPEATS
    ) -> Sample:
        """One sample, repeated at most ``repeats`` times; out of memory on any rank is one too.

        ``turn``: the round that it belongs to; memory is that of the first, and 0 bytes later.

        In the first round everything runs once, without transfers between stages, before ranks
        agree that it fits: a last stage that its logits do not fit leaves no other stage waiting.
        Ranks of one stage hold almost the same; where only some of them run out of memory, the
        others may wait for them in a collective: the bench's ``out_of_memory`` is called on those.
        """
        work, memory = None, None
        try:
            work = self._work(scheme, point.lengths)
            memory = _Memory() if turn else _Memory.of(work, self._bench)
        except torch.OutOfMemoryError:
            self._bench.out_of_memory()
            work = None
        if self._largest(float(memory is None)) or memory is None:
            return self._oom(scheme, point, turn)
        sample = None
        try:
            warm_up = 1 if turn else WARM_UP
            layers = self._times(None if work is None else work.layers, warm_up, repeats)
            ends = self._times(None if work is None else work.ends, warm_up, repeats)
            peaks = self._bench.allocator is not None
            sample = Sample(
                scheme=scheme,
                role=point.role,
                lengths=point.lengths,
                turn=turn,
                layers=self._bench.layers,
                layers_ms=layers.whole_ms,
                ends_ms=ends.whole_ms,
                forward_ms=layers.forward_ms,
                layers_yardstick_ms=layers.yardstick_ms,
                ends_yardstick_ms=ends.yardstick_ms,
                saved_bytes=int(self._largest(memory.layers_saved + memory.ends_saved)),
                layers_saved_bytes=int(self._largest(memory.layers_saved)),
                layers_peak_bytes=int(self._largest(memory.layers_peak)) if peaks else None,
                ends_peak_bytes=int(self._largest(memory.ends_peak)) if peaks else None,
            )
        except torch.OutOfMemoryError:
            self._bench.out_of_memory()
            sample = None
        if self._largest(float(sample is None)) or sample is None:
            return self._oom(scheme, point, turn)
        return sample

    def _oom(self, scheme: Scheme, point: Point, turn: int) -> Sample:
        if self._bench.device.type == "cuda":
            torch.cuda.empty_cache()
        return Sample.out_of_memory(scheme, point.role, point.lengths, self._bench.layers, turn)

    def _work(self, scheme: Scheme, lengths: Sequence[int]) -> _Work | None:
        """None on a rank that the scheme leaves over."""
        bench = self._bench
        plan = filled_plan(scheme, lengths, bench.world_size)
        if bench.rank in plan.idle_ranks:
            return None
        (pipeline,) = rank_view(plan, bench.rank).pipelines
        neighbours = Neighbours(pipeline.pp_previous, pipeline.pp_next)
        context = attention_context(
            pipeline, pipeline.micro_batches[0], self._peers, device=bench.device
        )
        stage = self._stage(scheme.tp)
        alone = stage.ends_call(context, neighbours)
        ends = with_transfers(alone, neighbours, stage.hidden(context), self._peers)
        return _Work(
            stage=stage,
            layers=stage.layers_call(context),
            whole=stage.whole_layer_call(context),
            alone=alone,
            ends=alone if scheme.pp == 1 else ends,
        )

    def _stage(self, tp: int) -> Stage:
        if tp not in self._stages:
            bench = self._bench
            ranks = TensorRanks() if tp == 1 else bench.tensor_ranks[tp]
            self._stages[tp] = Stage(bench.config, bench.layers, ranks, bench.device, bench.dtype)
        return self._stages[tp]

    def _times(self, call: Call | None, warm_up: int, most: int) -> _Times:
        """Of the slowest rank each time."""
        for _ in range(warm_up):
            took, _, _ = self._once(call)
        # On every rank the same number, from the time that the slowest rank sees.
        first_s = self._largest(took) / 1e3
        enough = ENOUGH_S / max(first_s, 1e-9)
        repeats = int(np.clip(enough, min(LEAST_REPEATS, most), most))
        rows = []
        before = self._read(call)
        for _ in range(repeats):
            whole, forward, within = self._once(call)
            after = self._read(call)
            rows.append((whole, forward, mean((before, *within, after))))
            before = after
        return _Times(*zip(*self._slowest(rows), strict=True))

    def _once(self, call: Call | None) -> tuple[float, float, list[float]]:
        """Milliseconds of forward and backward, and of forward; readings between them."""
        if self._bench.control_group is not None:
            dist.barrier(group=self._bench.control_group)
        if call is None:
            return 0.0, 0.0, []
        clock = Clock(self._bench.device)
        started = clock.mark()
        result = call.forward()
        between = clock.mark()
        if self._bench.device.type == "cpu" and self._bench.world_size == 1:
            readings, resumed = [self._yardstick.read()], clock.mark()
        else:
            readings, resumed = [], between
        call.backward(result)
        ended = clock.mark()
        for stage in self._stages.values():
            stage.zero_grad(set_to_none=True)
        forward_ms = clock.ms(started, between)
        return forward_ms + clock.ms(resumed, ended), forward_ms, readings

    def _read(self, call: Call | None) -> float:
        """The yardstick; nothing on a rank without work."""
        return 0.0 if call is None else self._yardstick.read()

    def _largest(self, value: float) -> float:
        """Over all ranks."""
        return self._slowest([(value,)])[0][0]

    def _slowest(self, rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
        """The largest of each figure over all ranks, which give as many of them."""
        if self._bench.control_group is None:
            return list(rows)
        tensor = torch.tensor(rows, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._bench.control_group)
        return [tuple(row) for row in tensor.tolist()]


@dataclass(frozen=True, slots=True)
class _Times:
    """Milliseconds of every repetition: forward and backward, forward, and a yardstick around."""

    whole_ms: tuple[float, ...]
    forward_ms: tuple[float, ...]
    yardstick_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes of a micro-batch on this rank: kept for backward, and the allocator's peaks.

    ``ends_saved`` includes what backward holds of one layer while it computes it again.
    """

    layers_saved: float = 0.0
    ends_saved: float = 0.0
    layers_peak: float = 0.0
    ends_peak: float = 0.0

    @classmethod
    def of(cls, work: _Work | None, bench: Bench) -> _Memory:
        """Runs every call; nothing on a rank without work."""
        if work is None:
            return cls()
        stage = work.stage
        layers = saved_bytes(work.layers, stage.parameters())
        ends = saved_bytes(work.alone, stage.parameters())
        again = 0.0
        if work.whole is not None:
            again = saved_bytes(work.whole, stage.parameters()) - layers / bench.layers
        peaks = [0, 0]
        for index, call in enumerate((work.layers, work.alone)):
            call.backward(call.forward())  # its gradients stay, as between micro-batches
            if bench.allocator is not None:
                peaks[index] = peak_bytes(call, bench.allocator)
            stage.zero_grad(set_to_none=True)
        return cls(layers, ends + max(again, 0.0), *peaks)


def filled_plan(scheme: Scheme, lengths: Sequence[int], world_size: int) -> Plan:
    """As many pipelines as there is room for, each with one micro-batch of these sequences."""
    replicas = world_size // scheme.gpus
    pipelines = []
    for replica in range(replicas):
        first = replica * len(lengths)
        batch = MicroBatch(
            tuple(range(first, first + len(lengths))),
            sum(lengths),
            scheme.padded_tokens(lengths),
            1.0,
        )
        ranks = range(replica * scheme.gpus, (replica + 1) * scheme.gpus)
        pipelines.append(PlannedPipeline(scheme, tuple(ranks), (batch,), float(scheme.pp)))
    tokens = replicas * sum(lengths)
    return Plan(
        step=0,
        planner=Planner("profile", 0, "none", None),
        world_size=world_size,
        ids=tuple(range(replicas * len(lengths))),
        lengths=tuple(lengths) * replicas,
        tokens=tokens,
        loss_tokens=tokens,
        pipelines=tuple(pipelines),
        idle_ranks=tuple(range(replicas * scheme.gpus, world_size)),
        groups=process_groups(pipelines),
        predicted_ms=float(scheme.pp),
        lower_bound_ms=float(scheme.pp),
        gap=0.0,
        selection=(),
    )
