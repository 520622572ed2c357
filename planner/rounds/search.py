"""Targets of rounds: the least common one, then one changed against the others."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.rounds.filled_rounds import FilledRounds
from seqplan.planner.rounds.filler import RoundsFiller

TOLERANCE = 1e-3
"""Relative width at which a search for a target ends."""

GOOD = 3e-3
"""Within this of the bound a plan is not improved."""

FACTORS = (0.8, 0.87, 0.92, 0.96, 1.04, 1.08, 1.15, 1.25)
"""Multiples of one round's target that are tried, the others following."""

TRIED_FILLS = 40
"""Rounds filled at most to improve one plan."""

PASSES = 2


def common_target(filler: RoundsFiller, rounds: int, bound_ms: float) -> FilledRounds | None:
    """Find the least common target for which ``rounds`` rounds hold all; None without one."""
    low = filler.area_ms / rounds + filler.overhead_ms
    low, target, step = low * 0.5, low, 0.02
    best = None
    while best is None:
        best = filler.fill([target] * rounds)
        if best is None:
            if step > 64:
                return None
            low, target, step = target, target * (1 + step), step * 2
    high = target
    while high - low > TOLERANCE * high and best.total_ms > bound_ms * (1 + TOLERANCE):
        middle = (low + high) / 2
        filled = filler.fill([middle] * rounds)
        if filled is None:
            low = middle
        else:
            high = middle
            best = filled if filled.total_ms < best.total_ms else best
    return best


def full_rounds(filler: RoundsFiller, rounds: int) -> FilledRounds | None:
    """Fill all rounds but the last about as full as memory allows, and that as short as works.

    Good where memory leaves no choice of their number. None where one round does not hold the rest.
    """
    first, left = filler.full(rounds - 1)
    if not left.any():
        return first
    last = common_target(filler.of_left(left), 1, 0.0)
    return None if last is None else first + last


def improved(
    filler: RoundsFiller,
    start: FilledRounds,
    bound_ms: float,
    fills: int = TRIED_FILLS,
) -> FilledRounds:
    """Change one round's target, later ones in common, while the sum of the rounds falls.

    ``fills``: rounds that are filled at most, about.
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
                best = _least_rest(filler, fixed, best)
        if best.total_ms > before * (1 - TOLERANCE):
            break
    return best


def _least_rest(filler: RoundsFiller, fixed: Sequence[float], best: FilledRounds) -> FilledRounds:
    """Give rounds after ``fixed`` the least common target; the better of them and ``best``."""
    rest = len(best.times_ms) - len(fixed)
    high = _limit_ms(best.total_ms, fixed, rest, filler.stages)
    if high <= filler.overhead_ms:
        return best
    filled = filler.fill([*fixed, *[high] * rest])
    if filled is None or filled.total_ms >= best.total_ms:
        return best
    best, low = filled, filler.overhead_ms
    # Where the rest holds next to nothing, halving its target gains nothing and would not end.
    while high - low > 4 * TOLERANCE * high and rest * high > TOLERANCE * best.total_ms:
        middle = (low + high) / 2
        filled = filler.fill([*fixed, *[middle] * rest])
        if filled is None:
            low = middle
        else:
            high = middle
            best = filled if filled.total_ms < best.total_ms else best
    return best


def _limit_ms(total_ms: float, fixed: Sequence[float], rest: int, stages: int) -> float:
    """Compute how long ``rest`` equal rounds may be for a step of ``total_ms`` with the fixed."""
    left, longest = total_ms - sum(fixed), max(fixed)
    shorter = (left - (stages - 1) * longest) / rest
    return shorter if shorter <= longest else left / (rest + stages - 1)
