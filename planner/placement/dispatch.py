"""Our dispatch: search the least target for which every sequence can be placed."""

from __future__ import annotations

from math import inf

from seqplan.planner.placement.fill import Filler, Filling, Shortfall

TOLERANCE = 5e-4
"""Relative width at which the search for the least feasible target ends."""

_LARGEST_STEP = 1e6
"""A target that has grown by steps up to this fits nothing."""


def probe(filler: Filler, lower_ms: float, below_ms: float) -> Filling | None:
    """Find a placement better than ``below_ms`` with one fill; None if it fails."""
    target = max(lower_ms, below_ms * (1 - 2 * TOLERANCE))
    if target >= below_ms:
        return None
    filling = filler.fill(target)
    # A fill may be above its target by the last bits of its sums.
    return filling if isinstance(filling, Filling) and filling.objective_ms < below_ms else None


def dispatch(
    filler: Filler, lower_ms: float, *, known: Filling | None = None, below_ms: float = inf
) -> Filling | None:
    """Minimize the slowest pipeline, as estimated, over dispatch and packing together.

    Gallops up from ``lower_ms``, a lower bound on the objective, then bisects to ``TOLERANCE``.
    ``known``: a placement found before; ``below_ms``: give up above it. None when no placement
    below it is found (with both left out: when a sequence fits no pipeline).
    """
    best, low = known, lower_ms
    target, step = lower_ms, 2 * TOLERANCE
    while best is None:
        if target >= below_ms:
            return None
        filling = filler.fill(target)
        if isinstance(filling, Filling):
            best = filling
        elif step > _LARGEST_STEP:
            return None
        else:
            low, target, step = target, target * (1 + step), step * 3
    while best.objective_ms > low * (1 + TOLERANCE):
        middle = (low + best.objective_ms) / 2
        better = filler.fill(middle)
        if isinstance(better, Shortfall):
            low = middle
        elif better.objective_ms < best.objective_ms:
            best = better
        else:
            break
    return best
