"""Targets of micro-steps: the least common one, then one changed against the others."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.lockstep.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filler import MicroStepsFiller

TOLERANCE = 1e-3
"""Relative width at which a search for a target ends."""

GOOD = 3e-3
"""Within this of the bound a plan is not improved."""

FACTORS = (0.8, 0.87, 0.92, 0.96, 1.04, 1.08, 1.15, 1.25)
"""Multiples of one micro-step's target that are tried, the others following."""

TRIED_FILLS = 40
"""Micro-steps filled at most to improve one plan."""

PASSES = 2


def common_target(
    filler: MicroStepsFiller, micro_steps: int, bound_ms: float
) -> FilledMicroSteps | None:
    """Find the least common target for which so many micro-steps hold all; None without one."""
    low = filler.area_ms / micro_steps + filler.overhead_ms
    low, target, step = low * 0.5, low, 0.02
    best = None
    while best is None:
        best = filler.fill([target] * micro_steps)
        if best is None:
            if step > 64:
                return None
            low, target, step = target, target * (1 + step), step * 2
    high = target
    while high - low > TOLERANCE * high and best.total_ms > bound_ms * (1 + TOLERANCE):
        middle = (low + high) / 2
        filled = filler.fill([middle] * micro_steps)
        if filled is None:
            low = middle
        else:
            high = middle
            best = filled if filled.total_ms < best.total_ms else best
    return best


def full_micro_steps(filler: MicroStepsFiller, micro_steps: int) -> FilledMicroSteps | None:
    """Fill all micro-steps but the last as full as memory allows.

    The last is as short as works. Good if memory leaves no choice of their number. None if one
    micro-step does not hold the rest.
    """
    first, left = filler.full(micro_steps - 1)
    if not left.any():
        return first
    last = common_target(filler.of_left(left), 1, 0.0)
    return None if last is None else first + last


def improve_targets(
    filler: MicroStepsFiller,
    start: FilledMicroSteps,
    bound_ms: float,
    fills: int = TRIED_FILLS,
    *,
    in_common: bool = True,
) -> FilledMicroSteps:
    """Change one micro-step's target and those of later ones against it, while the sum falls.

    Later ones take the least target ``in_common``, or are shortened in proportion. ``fills``:
    micro-steps that are filled at most, about.
    """
    best = start
    most = max(2, fills // len(start.times_ms))
    tried = 0
    for _ in range(PASSES):
        before = best.total_ms
        for r in range(len(best.times_ms) - 1):
            for factor in FACTORS:
                tried += 1
                if best.total_ms <= bound_ms * (1 + GOOD) or tried > most:
                    return best
                if r >= len(best.times_ms) - 1:
                    break
                fixed = [*best.times_ms[:r], best.times_ms[r] * factor]
                later = best.times_ms[r + 1 :]
                shape = [1.0] * len(later) if in_common else later
                best = _least_rest(filler, fixed, shape, best)
        if best.total_ms > before * (1 - TOLERANCE):
            break
    return best


def _least_rest(
    filler: MicroStepsFiller, fixed: Sequence[float], shape: Sequence[float], best: FilledMicroSteps
) -> FilledMicroSteps:
    """Give micro-steps after ``fixed`` the least multiple of a ``shape`` that works."""
    high = _limit(best.total_ms, fixed, shape, filler.stages)
    low = filler.overhead_ms / max(shape)
    if high <= low:
        return best
    filled = filler.fill([*fixed, *(high * part for part in shape)])
    if filled is None or filled.total_ms >= best.total_ms:
        return best
    best = filled
    # If the rest holds next to nothing, halving its targets gains nothing and would not end.
    while high - low > 4 * TOLERANCE * high and sum(shape) * high > TOLERANCE * best.total_ms:
        middle = (low + high) / 2
        filled = filler.fill([*fixed, *(middle * part for part in shape)])
        if filled is None:
            low = middle
        else:
            high = middle
            best = filled if filled.total_ms < best.total_ms else best
    return best


def _limit(total_ms: float, fixed: Sequence[float], shape: Sequence[float], stages: int) -> float:
    """Compute the multiple of ``shape`` that micro-steps after ``fixed`` may be in ``total_ms``."""
    left, longest = total_ms - sum(fixed), max(fixed)
    multiple = (left - (stages - 1) * longest) / sum(shape)
    if multiple * max(shape) <= longest:
        return multiple
    return left / (sum(shape) + (stages - 1) * max(shape))
