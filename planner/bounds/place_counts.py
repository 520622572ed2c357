"""Whether places that run whole numbers of micro-batches can hold all sequences by a time.

A place is some ranks that run equally many micro-batches. With stages v of them end after their sum
and μ(v) times the mean, so that the sum is at most T·v / (v + μ(v)). For some v, n places run up to
v of them, and the others have T·w / (w + μ(w)) − w·c each for work, if c is the least overhead,
with the w ≥ v + 1 that leaves most. The n hold at most the
sequences with most work a token, and pay for their tokens: a micro-batch of more tokens has fewer
classes, on which a token takes more than the least work. If that is too little for every n, at some
v, no plan ends by T.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import inf

import numpy as np

from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.bubbles import count_best_micro_batches
from seqplan.planner.placement.fleet import Floats, Ints

MOST_COUNTS = 4
"""Numbers of micro-batches of a place that are distinguished from larger ones."""

NO_BUBBLES = np.zeros(MOST_COUNTS + 1)
"""Those of pipelines without stages."""

POINTS = 65
"""Numbers of places that are tried at once."""


@dataclass(frozen=True)
class PlaceCounts:
    """Places, and what all sequences take of them on known classes.

    ``prices``: of ``_list_prices``; ``tokens_up_to``, ``work_up_to`` (n + 1,): sums from the most
    work a token on, which take ``taken_up_to`` at each price (ms). Others as of ``from_work``.
    """

    prices: list[tuple[float, float, float]]
    tokens_up_to: Floats
    work_up_to: Floats
    taken_up_to: list[Floats]
    overhead_ms: float
    places: int
    bubbles: Floats

    @classmethod
    def from_work(
        cls,
        work_ms: Floats,
        tokens: Ints,
        counts: Ints,
        room: Floats,
        overhead_ms: float,
        places: int,
        bubbles: Floats,
    ) -> PlaceCounts:
        """Sum what sequences take.

        ``work_ms`` (classes, n): what a sequence takes of a place, infinite if the class does not
        run it; ``tokens``, ``counts`` (n,): least padded tokens and number of each; ``room``
        (classes,): tokens of a micro-batch on a place; ``overhead_ms``: of a micro-batch at least;
        ``bubbles``: how many more of the mean every class idles for at least with 1, 2, …
        micro-batches, the last with any larger number.
        """
        work = work_ms.min(axis=0)
        prices = _list_prices(overhead_ms, room, ((work_ms - work) / tokens).min(axis=1))
        most_first = np.argsort(-work / tokens, kind="stable")
        counts = counts[most_first]
        tokens_up_to = np.concatenate([[0.0], np.cumsum(counts * tokens[most_first])])
        work_up_to = np.concatenate([[0.0], np.cumsum(counts * work[most_first])])
        taken_up_to = [work_up_to + price * tokens_up_to for _, price, _ in prices]
        return cls(prices, tokens_up_to, work_up_to, taken_up_to, overhead_ms, places, bubbles)

    def may_hold_by(self, time_ms: float) -> bool:
        """Whether the places may hold all sequences by a time; False is proven."""
        return all(self._reach_by(time_ms, most) for most in range(MOST_COUNTS + 1))

    def _reach_by(self, time_ms: float, most: int) -> bool:
        """Whether they hold all if some run ``most`` micro-batches at most, concave in how many."""
        needed = self.work_up_to[-1] * (1 - ROUNDING)
        low, high = 0, self.places
        while True:
            span = high - low
            tried = np.arange(span + 1 if span < POINTS else POINTS)
            few = low + (tried if span < POINTS else tried * span // (POINTS - 1))
            held = self._hold(few, most, time_ms)
            best = int(held.argmax())
            if held[best] >= needed:
                return True
            if span < POINTS:
                return False
            low, high = int(few[max(best - 1, 0)]), int(few[min(best + 1, len(few) - 1)])

    def _hold(self, few: Ints, most: int, time_ms: float) -> Floats:
        """Bound the work (ms) of all places if ``few`` run ``most`` at most."""
        held = few * (most * self.prices[-1][2])
        sum_ms = time_ms * most / (most + self.bubbles[most - 1]) if most else 0.0
        for (fixed, _, _), taken in zip(self.prices, self.taken_up_to, strict=True):
            in_time = np.interp(few * (sum_ms - most * fixed), taken, self.tokens_up_to)
            held = np.minimum(held, in_time)
        rest_ms = _most_work_ms(time_ms, most + 1, self.overhead_ms, self.bubbles)
        worked: Floats = np.interp(held, self.tokens_up_to, self.work_up_to)
        worked += (self.places - few) * rest_ms
        return worked


def _most_work_ms(time_ms: float, least: int, overhead_ms: float, bubbles: Floats) -> float:
    """Return the most work (ms) of ``least`` micro-batches or more by a time."""
    best = count_best_micro_batches(time_ms, bubbles[-1], overhead_ms)
    if best == inf:
        return time_ms
    counts = np.append(np.arange(least, len(bubbles)), max(best, len(bubbles)))
    left_ms = time_ms * counts / (counts + bubbles[least - 1 :]) - counts * overhead_ms
    return max(float(left_ms.max()), 0.0)


def _list_prices(
    overhead_ms: float, room: Floats, above_ms: Floats
) -> list[tuple[float, float, float]]:
    """List prices beyond the least work: of a micro-batch, of a token, and its room.

    ``room`` (classes,): tokens of a micro-batch; ``above_ms``: what a token takes more on the class
    at least, infinite if no sequence ends there. A micro-batch of more tokens has fewer classes, so
    that the time rises with its tokens along a convex line, and m micro-batches of t tokens
    together take m·(price of one) + t·(price of a token) or more, at each pair of prices.
    """
    corners = [(0.0, overhead_ms)]
    able = np.isfinite(above_ms)
    extras = (room * above_ms)[able].tolist()
    for tokens, extra in sorted(zip(room[able].tolist(), extras, strict=True)):
        corner = (tokens, overhead_ms + extra)
        while corners[1:] and (
            corners[-1][0] == corner[0]
            or _slope(corners[-2], corners[-1]) >= _slope(corners[-1], corner)
        ):
            if corners[-1][0] == corner[0]:
                corner = min(corner, corners[-1])
            corners.pop()
        corners.append(corner)
    fullest = min(range(1, len(corners)), key=lambda i: corners[i][1] / corners[i][0])
    prices = [(0.0, corners[fullest][1] / corners[fullest][0], corners[fullest][0])]
    for before, corner in itertools.pairwise(corners[fullest:]):
        slope = _slope(before, corner)
        prices.append((before[1] - slope * before[0], slope, corner[0]))
    return prices


def _slope(before: tuple[float, float], after: tuple[float, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])
