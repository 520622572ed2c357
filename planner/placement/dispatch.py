"""Our dispatch: search the least target for which every sequence can be placed."""

from __future__ import annotations

from math import inf

from seqplan.planner.placement.fill import Filler, Filling, Shortfall

TOLERANCE = 5e-4
"""Relative width at which the search for the least feasible target ends."""

TWO_ORDERS_UP_TO = 600
"""With at most so many distinct lengths the fill is also made with new micro-batches first."""

_LARGEST_STEP = 1e6
"""A target that has grown by steps up to this fits nothing."""

EVEN = 0.98
"""GPUs busy for this share of the step are level enough."""

LEVEL_TOLERANCE = 1e-2
"""The same when levelling the pipelines that do not bind the step."""


def probe(filler: Filler, lower_ms: float, below_ms: float) -> Filling | None:
    """Find a placement better than ``below_ms`` with one fill in each order; None if both fail."""
    orders = (False, True) if len(filler.lengths) <= TWO_ORDERS_UP_TO else (False,)
    found = (_fill_below(filler, lower_ms, below_ms, new_first=order) for order in orders)
    return next((filling for filling in found if filling is not None), None)


def _fill_below(
    filler: Filler, lower_ms: float, below_ms: float, *, new_first: bool
) -> Filling | None:
    target = max(lower_ms, below_ms * (1 - 2 * TOLERANCE))
    if target >= below_ms:
        return None
    filling = filler.fill(target, new_first=new_first)
    # A fill may be above its target by the last bits of its sums.
    return filling if isinstance(filling, Filling) and filling.objective_ms < below_ms else None


def dispatch(
    filler: Filler, lower_ms: float, *, known: Filling | None = None, below_ms: float = inf
) -> Filling | None:
    """Minimize the slowest pipeline, as estimated, over dispatch and packing together.

    Gallops up from ``lower_ms``, a lower bound on the objective, then bisects to ``TOLERANCE``;
    small batches are tried once more with micro-batches opened before old ones are topped up.
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
    best = _bisect(filler, low, best)
    if len(filler.lengths) <= TWO_ORDERS_UP_TO:
        better = _fill_below(filler, lower_ms, best.objective_ms, new_first=True)
        if better is not None:
            return _bisect(filler, lower_ms, better, new_first=True)
    return best


def _bisect(filler: Filler, low: float, best: Filling, *, new_first: bool = False) -> Filling:
    """Lower ``best`` towards ``low``, a target that failed, as far as fills succeed."""
    while best.objective_ms > low * (1 + TOLERANCE):
        middle = (low + best.objective_ms) / 2
        better = filler.fill(middle, new_first=new_first)
        if isinstance(better, Shortfall):
            low = middle
        elif better.objective_ms < best.objective_ms:
            best = better
        else:
            break
    return best


def level(filler: Filler, filling: Filling, lower_ms: float) -> Filling:
    """Even out the pipelines that do not bind: the same slowest pipeline, less spread below it.

    Pipelines whose first sequence alone needs long keep the step's time as their ceiling; the
    target of all others is lowered as far as it goes.
    """
    ceiling = filling.objective_ms
    sizes = [pipeline_class.gpus for pipeline_class in filler.fleet.classes]
    busy = sum(size * sum(times) for size, times in zip(sizes, filling.pipeline_ms, strict=True))
    if busy > EVEN * ceiling * filler.fleet.strategy.gpus:
        return filling
    best, low, high = filling, lower_ms, ceiling
    while high > low * (1 + LEVEL_TOLERANCE):
        middle = (low + high) / 2
        levelled = filler.fill(middle, ceiling)
        if isinstance(levelled, Filling) and levelled.objective_ms <= ceiling:
            best, high = levelled, middle
        else:
            low = middle
    return best
