"""The search for micro-steps: numbers of them from the fewest on, and the target of each.

A filler starts with so many micro-steps in some ways, such as the least common target that works.
Targets of the best starts are then changed one against the others while the sum falls. More
micro-steps are tried while that gains; of the best numbers, the best is searched further. One
search serves groups of all sizes, of one size, and ranks that have their sequences already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import Begun, MicroStepsFiller

TOLERANCE = 1e-3
"""Relative width at which a search for a target ends."""

GOOD = 3e-3
"""Within this of the bound a plan is not improved."""

FACTORS = (0.8, 0.87, 0.92, 0.96, 1.04, 1.08, 1.15, 1.25)
"""Multiples of one micro-step's target that are tried, the others following."""

PASSES = 2


class Timed(Protocol):
    """Micro-steps with the time of each, and of all (ms)."""

    @property
    def times_ms(self) -> tuple[float, ...]: ...

    @property
    def total_ms(self) -> float: ...


MicroStepsT = TypeVar("MicroStepsT", bound=Timed)


Improve = Callable[[MicroStepsT, float, int, bool], MicroStepsT]
"""Improves micro-steps, by the bound (ms), the micro-steps filled at most, and whether later
targets are shortened in common."""


@dataclass(frozen=True)
class Start(Generic[MicroStepsT]):
    """Micro-steps, and how their targets can be improved; None if they are final."""

    micro_steps: MicroStepsT
    improve: Improve[MicroStepsT] | None = None


class Starter(Protocol[MicroStepsT]):
    """Makes starts of a number of micro-steps; ``best_ms``: the least time that is reached."""

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[MicroStepsT]]: ...


@dataclass(frozen=True)
class SearchSettings:
    """How far micro-steps are searched."""

    extra: int
    """Numbers of micro-steps tried in turn without a gain, beyond the first without."""
    improved: int
    """Starts of a number that are improved, the shortest first."""
    fills: int
    """Micro-steps filled to improve one start, about."""
    promising: float = inf
    """Starts that take so many times the best known one are not improved."""
    gain: float = 1.0
    """Share of the best below which more micro-steps have to stay."""
    deepened: int = 0
    """Numbers of micro-steps whose best is searched further in the end."""
    near: float = inf
    """How near to the best of all they have to be for that."""
    deep_fills: int = 0
    """Micro-steps filled for each of these, about."""


def search(
    fillers: Sequence[Starter[MicroStepsT]],
    numbers: Iterable[int],
    bound_ms: Callable[[int], float],
    settings: SearchSettings,
    *,
    known_ms: float = inf,
    further: Sequence[Start[MicroStepsT]] = (),
) -> tuple[list[MicroStepsT], float]:
    """Search numbers of micro-steps, ascending, while they gain; the shortest found first.

    ``bound_ms``: of all plans of a number. ``known_ms``: a time that is reached already;
    ``further``: candidates of any number. Returns the least of the bounds as well: that of the
    number after the last that was tried counts for all larger ones.
    """
    candidates = list(further)
    best_ms, behind = known_ms, 0
    bounds: list[float] = []
    for number in numbers:
        bounds.append(bound_ms(number))
        if best_ms < inf and behind > settings.extra:
            break
        behind += 1
        if bounds[-1] >= best_ms * settings.gain:
            continue
        for improved in _improve_starts(fillers, number, bounds[-1], best_ms, settings):
            candidates.append(improved)
            if _total_ms(improved) < best_ms * settings.gain:
                best_ms, behind = _total_ms(improved), 0
    least_ms = min(bounds, default=0.0)
    for candidate in _best_of_each_number(candidates)[: settings.deepened]:
        if candidate.improve is not None and _total_ms(candidate) <= best_ms * settings.near:
            deeper = candidate.improve(candidate.micro_steps, least_ms, settings.deep_fills, False)
            candidates.append(Start(deeper))
    return [candidate.micro_steps for candidate in sorted(candidates, key=_total_ms)], least_ms


def _improve_starts(
    fillers: Sequence[Starter[MicroStepsT]],
    number: int,
    bound_ms: float,
    best_ms: float,
    settings: SearchSettings,
) -> list[Start[MicroStepsT]]:
    """Start with so many micro-steps in every way, and improve the shortest starts."""
    starts: list[Start[MicroStepsT]] = []
    for filler in fillers:
        starts += filler.list_starts(number, bound_ms, min([best_ms, *map(_total_ms, starts)]))
    starts.sort(key=_total_ms)
    limit_ms = min([best_ms, *map(_total_ms, starts)]) * settings.promising
    final = [start for start in starts if start.improve is None]
    open_ = [start for start in starts if start.improve is not None]
    for start in open_[: settings.improved]:
        if start.improve is not None and _total_ms(start) <= limit_ms:
            better = start.improve(start.micro_steps, bound_ms, settings.fills, True)
            final.append(Start(better, start.improve))
    return final


def _best_of_each_number(candidates: Sequence[Start[MicroStepsT]]) -> list[Start[MicroStepsT]]:
    """Choose the shortest of each number of micro-steps, the shortest of all first."""
    by_number: dict[int, Start[MicroStepsT]] = {}
    for candidate in sorted(candidates, key=_total_ms):
        by_number.setdefault(len(candidate.micro_steps.times_ms), candidate)
    return list(by_number.values())


def _total_ms(candidate: Start[MicroStepsT]) -> float:
    return candidate.micro_steps.total_ms


class TargetFiller:
    """Starts with a common target, and with full micro-steps unless ``full`` is false."""

    def __init__(self, filler: MicroStepsFiller, *, full: bool = True) -> None:
        self.filler, self._full = filler, full

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[FilledMicroSteps]]:
        """List starts of so many micro-steps; see ``Starter``."""
        starts = [common_target(self.filler, number, bound_ms)]
        if self._full:
            starts.append(full_micro_steps(self.filler, number))
        return [Start(start, self.improve) for start in starts if start is not None]

    def list_least_waste(self, multiple: int) -> list[Start[FilledMicroSteps]]:
        """Fill each micro-step with the least waste, if their number is a multiple."""
        found = self.filler.fill_with_least_waste()
        if found is None or len(found.times_ms) % multiple:
            return []
        return [Start(found, self.improve)]

    def improve(
        self, start: FilledMicroSteps, bound_ms: float, fills: int, in_common: bool
    ) -> FilledMicroSteps:
        """Improve the targets of micro-steps."""
        return improve_targets(self.filler, start, bound_ms, fills, in_common=in_common)


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
    fills: int,
    *,
    in_common: bool,
) -> FilledMicroSteps:
    """Change one micro-step's target and those of later ones against it, while the sum falls.

    Later ones take the least target ``in_common``, or are shortened in proportion. ``fills``:
    micro-steps that are filled at most, about.
    """
    best = start
    most = max(2, fills // len(start.times_ms))
    tried = 0
    begun, first = filler.begin([]), tuple[float, ...]()
    for _ in range(PASSES):
        before = best.total_ms
        for r in range(len(best.times_ms) - 1):
            for factor in FACTORS:
                tried += 1
                if best.total_ms <= bound_ms * (1 + GOOD) or tried > most:
                    return best
                if r >= len(best.times_ms) - 1:
                    break
                if best.times_ms[:r] != first:
                    first = best.times_ms[:r]
                    begun = filler.begin(first)
                changed = best.times_ms[r] * factor
                later = best.times_ms[r + 1 :]
                shape = [1.0] * len(later) if in_common else later
                limit_ms = _limit(best.total_ms, [*first, changed], shape, filler.stages)
                best = _least_rest(filler, begun, changed, shape, best, limit_ms)
        if best.total_ms > before * (1 - TOLERANCE):
            break
    return best


def _least_rest(
    filler: MicroStepsFiller,
    begun: Begun,
    target_ms: float,
    shape: Sequence[float],
    best: FilledMicroSteps,
    high: float,
) -> FilledMicroSteps:
    """Give micro-steps after one of ``target_ms`` the least multiple of a ``shape`` that works.

    ``begun``: micro-steps before that; ``high``: the multiple that is tried first.
    """
    low = filler.overhead_ms / max(shape)
    if high <= low:
        return best
    begun = filler.begin([target_ms], begun)
    filled = filler.fill([high * part for part in shape], begun)
    if filled is None or filled.total_ms >= best.total_ms:
        return best
    best = filled
    # If the rest holds next to nothing, halving its targets gains nothing and would not end.
    while high - low > 4 * TOLERANCE * high and sum(shape) * high > TOLERANCE * best.total_ms:
        middle = (low + high) / 2
        filled = filler.fill([middle * part for part in shape], begun)
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
