"""Measuring one micro-batch: real layers, forward and backward, under a real scheme.

Alone it measures schemes of one rank; started by torchrun, those of as many ranks as there are.
``bench`` defines a rank's part of a micro-batch, ``timing`` its timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from seqplan.costs.fit.samples import Sample
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench, RankWork
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.out_of_memory import is_out_of_memory
from seqplan.profiler.measure.saved_memory import MicroBatchMemory
from seqplan.profiler.measure.stage import StageWork
from seqplan.profiler.measure.timing import MOST_REPEATS, Timer, Times

Result = TypeVar("Result")

WARM_UP = 2
"""Runs of a point that are not counted, in its first round; in later ones a single one is not."""


class Measurer:
    """Runs micro-batches of one model; every rank makes one and measures the same points.

    ``warm``: whether the device is at its steady speed already, or times do not matter.
    """

    def __init__(self, bench: Bench, *, warm: bool = False) -> None:
        torch.manual_seed(0)
        self._bench = bench
        self._rank_work = RankWork(bench)
        self._timer = Timer(bench, self._rank_work.forget_gradients)
        self._warm = warm
        self._queued = bench.device.type != "cpu"

    def measure(
        self, scheme: Scheme, point: DesignPoint, *, turn: int = 0, repeats: int = MOST_REPEATS
    ) -> Sample:
        """Measure one sample, ``repeats`` times at most; out of memory on any rank is one too.

        ``turn``: the round that it belongs to; memory is that of the first, and 0 bytes later.

        In the first round everything runs once, without transfers between stages, before ranks
        agree that it fits: a last stage that its logits do not fit leaves no other stage waiting.
        Ranks of one stage hold almost the same; if only some of them run out of memory, the
        others may wait for them in a collective: the bench's ``out_of_memory`` is called on those.
        """
        if not self._warm:
            self._timer.warm_up()
            self._warm = True
        prepared = self._attempt(lambda: self._prepare(scheme, point, turn))
        if self._anywhere(prepared is None) or prepared is None:
            return self._oom(scheme, point, turn)
        sample = self._attempt(lambda: self._time(*prepared, scheme, point, turn, repeats))
        if self._anywhere(sample is None) or sample is None:
            return self._oom(scheme, point, turn)
        return sample

    def _prepare(
        self, scheme: Scheme, point: DesignPoint, turn: int
    ) -> tuple[StageWork | None, MicroBatchMemory]:
        """Prepare the micro-batch and its memory."""
        work = self._rank_work.of(scheme, point.lengths)
        if turn:
            return work, MicroBatchMemory()
        return work, MicroBatchMemory.of(work, self._bench.layers, self._bench.allocator)

    def _time(
        self,
        work: StageWork | None,
        memory: MicroBatchMemory,
        scheme: Scheme,
        point: DesignPoint,
        turn: int,
        repeats: int,
    ) -> Sample:
        """Time the micro-batch on every rank."""
        timer, peaks = self._timer, self._bench.allocator is not None
        warm_up = 1 if turn else WARM_UP
        layers = timer.times(None if work is None else work.layers, warm_up, repeats)
        ends = timer.times(None if work is None else work.ends, warm_up, repeats)
        experts: Times | None = None
        if self._bench.blocks is not None:
            call = None if work is None else work.experts
            experts = timer.times(call, warm_up, repeats)
        return Sample(
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
            layers_cpu_ms=() if self._queued else layers.cpu_ms,
            layers_host_ms=layers.host_ms if self._queued else (),
            saved_bytes=int(timer.largest(memory.layers_saved + memory.ends_saved)),
            layers_saved_bytes=int(timer.largest(memory.layers_saved)),
            layers_peak_bytes=int(timer.largest(memory.layers_peak)) if peaks else None,
            ends_peak_bytes=int(timer.largest(memory.ends_peak)) if peaks else None,
            allocated_bytes=int(timer.largest(memory.allocated)) if peaks else None,
            reserved_bytes=int(timer.largest(memory.reserved)) if peaks else None,
            experts_ms=experts.whole_ms if experts else (),
            experts_yardstick_ms=experts.yardstick_ms if experts else (),
            host_bytes=int(timer.largest(memory.host)),
        )

    def _attempt(self, run: Callable[[], Result]) -> Result | None:
        """Return the result; None if this rank has no room for it."""
        try:
            return run()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._bench.out_of_memory()
            return None

    def _anywhere(self, lacking: bool) -> bool:
        """Whether any rank lacks memory; all ranks call it."""
        return bool(self._timer.largest(float(lacking)))

    def _oom(self, scheme: Scheme, point: DesignPoint, turn: int) -> Sample:
        if self._bench.device.type == "cuda":
            torch.cuda.empty_cache()
        return Sample.out_of_memory(scheme, point.role, point.lengths, self._bench.layers, turn)
