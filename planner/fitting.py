"""The time at which the relaxation over all strategies just fits the GPUs, and its bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batch import Batch
from seqplan.planner.bounds import relaxed_bound_ms, single_bound_ms
from seqplan.planner.fleet import PipelineClass
from seqplan.planner.relax import Relaxation, relax
from seqplan.planner.resources import ROUNDING

FITS = 5e-3
"""Share of the GPUs that a relaxation may leave unused and count as just fitting."""


def fitting_time(
    classes: Sequence[PipelineClass],
    batch: Batch,
    gpus: int,
    lower_ms: float,
    guess_ms: float | None = None,
) -> tuple[Relaxation, float]:
    """The relaxation at (about) the least time at which it fits ``gpus``, and that time (ms).

    The scale falls about as fast as the time rises, so a few secant steps from ``guess_ms`` do.
    Raises ``ValueError`` when a sequence fits no class.
    """
    if not np.isfinite(lower_ms):
        limit = max(item.capacity for item in classes)
        raise ValueError(f"a sequence of {batch.longest} tokens exceeds every scheme's {limit}")
    floor = lower_ms * (1 + ROUNDING)
    time, low, best = max(floor, guess_ms or floor), floor, None
    for _ in range(12):
        relaxed = relax(classes, batch, time, gpus)
        if relaxed is None or relaxed.scale > 1:
            low = time
        else:
            best = (relaxed, time)
            if relaxed.scale > 1 - FITS or time <= floor:
                break
        scale = 1.5 if relaxed is None else relaxed.scale
        # Aim a little above, so that the next one fits.
        time = max(time * scale * (1 + FITS / 3), low)
        if best is not None and time >= best[1]:
            break
        if time <= low:
            time = low * (1 + FITS)
    if best is None:
        raise ValueError(f"no scheme runs the longest sequence of {batch.longest} tokens")
    return best


def all_strategies_bound_ms(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, reached_ms: float
) -> float:
    """A proven lower bound (ms) over all strategies of the classes, sought below a time reached."""
    low = single_bound_ms(classes, batch)
    at = reached_ms / (1 + FITS)
    for _ in range(3):
        if low >= at:
            break
        relaxed = relax(classes, batch, at, gpus)
        if relaxed is None:
            break  # not solved: that proves nothing
        low = relaxed_bound_ms(classes, batch, relaxed, low, reached_ms, gpus)
        if relaxed.scale >= 1 - FITS / 2:
            break
        at = max(low * (1 + FITS / 4), at * relaxed.scale * (1 + FITS / 4))
    return min(low, reached_ms)
