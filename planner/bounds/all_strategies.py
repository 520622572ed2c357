"""The relaxation over all strategies of a cluster: the time at which it fits, and its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import bound_by_relaxation_ms, refutes_time
from seqplan.planner.bounds.gpu_time import area_only_bound_ms, single_bound_ms
from seqplan.planner.bounds.held_value import HeldValue, Mixes, Relaxation, list_fixed_mixes
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import Models, PipelineClass

FITS = 5e-3
"""Share of the GPUs that a relaxation may leave unused and count as just fitting."""

CLOSE = 0.02
"""Share of the GPUs that a relaxation may leave unused and its values prove all the same."""

PRICED_OUT = 1e-3
"""A class that is worth this share more per GPU than those in the program is taken into it."""


class AllStrategies:
    """The relaxation with any number of pipelines of each class within a number of GPUs.

    Few schemes of a profile matter, so the program is solved on those that do and the others are
    priced (column generation): a class that could hold more value per GPU joins. What joined once
    stays for the batches that follow.
    """

    def __init__(self, models: Models, gpus: int) -> None:
        self.models = models
        self.gpus = gpus
        self.schemes = sorted(models)
        self.classes = tuple(PipelineClass.from_model(models[scheme], 1) for scheme in self.schemes)
        one_stage = {k for k, pipeline_class in enumerate(self.classes) if pipeline_class.pp == 1}
        self._active = one_stage or set(range(len(self.classes)))
        self._area: tuple[Batch, float] | None = None

    def area_bound_ms(self, batch: Batch) -> float:
        """Bound every plan by GPU-time alone (ms); computed once for consecutive calls."""
        if self._area is None or self._area[0] is not batch:
            self._area = batch, area_only_bound_ms(self.classes, batch, self.gpus)
        return self._area[1]

    def relax(self, batch: Batch, time_ms: float) -> Relaxation | None:
        """Solve at ``time_ms``; None when a sequence can end by then on no class."""
        while True:
            active = sorted(self._active)
            others = [k for k in range(len(self.classes)) if k not in self._active]
            part = relax([self.classes[k] for k in active], batch, time_ms, self.gpus)
            if part is None:
                if not others:
                    return None
                self._active.update(others)
                continue
            whole = self._embed(part, active)
            worth = float(part.values @ batch.multiplicity) / (self.gpus * part.scale)
            better = [k for k in others if self._worth(batch, whole, k, time_ms) > worth]
            if not better:
                return whole
            self._active.update(better)

    def _worth(self, batch: Batch, whole: Relaxation, k: int, time_ms: float) -> float:
        """Compute the value per GPU of a class, less the share that is let pass."""
        pipeline_class = self.classes[k]
        held = HeldValue(pipeline_class, batch, whole, k, list_fixed_mixes(whole))
        return held.most(time_ms) / pipeline_class.gpus / (1 + PRICED_OUT)

    def _embed(self, part: Relaxation, active: Sequence[int]) -> Relaxation:
        """Extend a solution to all classes; the others get no pipelines and are priced by work."""
        only_work = np.eye(part.resources)[:1]
        pipelines = np.zeros(len(self.classes))
        mixes = []
        for pipeline_class in self.classes:
            levels = len(part.levels) if pipeline_class.least_bubbles else 0
            mixes.append(Mixes(even=only_work, peaked=np.repeat(only_work, levels, axis=0)))
        for place, k in enumerate(active):
            pipelines[k], mixes[k] = part.pipelines[place], part.mixes[place]
        return replace(part, pipelines=pipelines, mixes=tuple(mixes))


SECANT_STEPS, STRETCHED_STEPS, STRETCH = 12, 40, 1.5
"""Steps towards the least fitting time; then by how much the time grows until it fits."""


def fitting_time(
    all_strategies: AllStrategies, batch: Batch, guess_ms: float | None = None
) -> tuple[Relaxation, float]:
    """Find (about) the least time (ms) at which the relaxation fits the GPUs; return both.

    The scale falls about as fast as the time rises, so a few secant steps from ``guess_ms`` do; it
    falls more slowly where little but launch overhead is left, and then the time is stretched.
    Raises ``ValueError`` when a sequence fits no class.
    """
    lower_ms = single_bound_ms(all_strategies.classes, batch)
    if not np.isfinite(lower_ms):
        limit = max(pipeline_class.capacity for pipeline_class in all_strategies.classes)
        raise ValueError(
            f"a sequence of {batch.longest} tokens exceeds every scheme's {limit}"
            ". Use larger groups or a shorter context"
        )
    floor = lower_ms * (1 + ROUNDING)
    time, low, best = max(floor, guess_ms or floor), floor, None
    for step in range(SECANT_STEPS + STRETCHED_STEPS):
        relaxed = all_strategies.relax(batch, time)
        if relaxed is None or relaxed.scale > 1:
            low = time
        else:
            best = (relaxed, time)
            if relaxed.scale > 1 - FITS or time <= floor:
                break
        if best is not None and step >= SECANT_STEPS:
            break
        scale = STRETCH if relaxed is None else relaxed.scale
        if best is None and step >= SECANT_STEPS - 1:
            scale = max(scale, STRETCH)
        # Aim a little above, so that the next one fits.
        time = max(time * scale * (1 + FITS / 3), low)
        if best is not None and time >= best[1]:
            break
        if time <= low:
            time = low * (1 + FITS)
    if best is None:
        raise ValueError(
            f"no scheme runs the longest sequence of {batch.longest} tokens"
            ". Use larger groups or a shorter context"
        )
    return best


def weigh_time(all_strategies: AllStrategies, batch: Batch, time_ms: float) -> tuple[bool, float]:
    """Whether no strategy ends by ``time_ms``, and about when the relaxation fits (ms).

    By a single program: quicker than ``all_strategies_bound_ms``, whose values are better ones.
    """
    relaxed = all_strategies.relax(batch, time_ms)
    if relaxed is None:
        return False, time_ms  # not solved: that proves nothing
    fits_ms = time_ms * relaxed.scale
    if relaxed.scale <= 1:
        return False, fits_ms
    classes, gpus = all_strategies.classes, all_strategies.gpus
    return refutes_time(classes, batch, relaxed, time_ms, gpus), fits_ms


def all_strategies_bound_ms(
    all_strategies: AllStrategies, batch: Batch, reached_ms: float
) -> float:
    """Prove a lower bound (ms) over all strategies, sought below a time that was reached."""
    classes, gpus = all_strategies.classes, all_strategies.gpus
    low = single_bound_ms(classes, batch)
    time = reached_ms / (1 + FITS)
    for _ in range(3):
        if low >= time:
            break
        relaxed = all_strategies.relax(batch, time)
        if relaxed is None:
            break  # not solved: that proves nothing
        guess = min(time, time * relaxed.scale)
        low = bound_by_relaxation_ms(
            classes, batch, relaxed, low, reached_ms, gpus=gpus, guess_ms=guess
        )
        if relaxed.scale >= 1 - CLOSE:
            break
        time = max(low * (1 + FITS / 4), time * relaxed.scale * (1 + FITS / 4))
    return min(low, reached_ms)
