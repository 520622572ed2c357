"""Sizes of a pipeline's micro-batches with which its stages idle least.

While a pipeline fills, a stage waits for forwards of the stage before it; while it drains, for
backwards of the stage after it. So its first and last micro-batches should be smaller than the
others: ramps up and down. No way down and up the stages takes more than the sum and a limit if the
sizes, of V micro-batches, are the lesser of δ·h_0 … δ·h_V−1 and (1 − δ)·g_V−1 … (1 − δ)·g_0, see
``bubbles``; δ is that of the largest sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf

import numpy as np

from seqplan.planner.placement.bubbles import list_growth, list_sizes
from seqplan.planner.placement.fleet import Floats
from seqplan.planner.simulation.one_f_one_b import simulate_ms

MOST_SIZES = 64
"""Micro-batches of a pipeline whose sizes are kept. Of more, all others are as the largest."""

KNOWN = 32
"""Numbers of stages with shares of forward whose sizes are kept."""


ANY_NUMBER = 2**31 - 1
"""No limit on the micro-batches of a pipeline."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most time of each micro-batch of a pipeline (ms), descending; equal without shares.

    ``shares``: of ``largest_ms``, for the last of ``number`` micro-batches; 1 for all before.
    """

    most_ms: float
    number: int = ANY_NUMBER
    largest_ms: float = inf
    shares: Sequence[float] = ()

    def of(self, place: int) -> float:
        """Return the most time of a micro-batch (ms) by its place in order of size."""
        if not self.shares:
            return self.most_ms
        place = max(place - (self.number - len(self.shares)), 0)
        return min(self.most_ms, self.largest_ms * self.shares[place])


@dataclass(frozen=True, eq=False)
class Ramps:
    """Sizes of V = 1 … ``MOST_SIZES`` micro-batches, as shares of the largest.

    ``shares`` (V, V) descending, with zeros after V; ``weights`` (V,): how many of the largest they
    take with the time that stages idle for, as simulated. ``places`` (V, V): in the pipeline, that
    of the largest first.
    """

    shares: Floats
    weights: Floats
    places: list[list[int]]

    @staticmethod
    @lru_cache(maxsize=KNOWN)
    def from_forward(pp: int, forward: float) -> Ramps:
        """Make those of ``pp`` stages for forward's share of a micro-batch's time."""
        filled = 1 / list_growth(pp, forward, MOST_SIZES)
        drained = 1 / list_growth(pp, 1 - forward, MOST_SIZES)
        shares, weights = np.zeros((MOST_SIZES, MOST_SIZES)), np.zeros(MOST_SIZES)
        places = []
        for v in range(1, MOST_SIZES + 1):
            of_splits = list_sizes(filled[:v], drained[:v][::-1])
            # Rounded, as equal sums decide by the first.
            sizes = of_splits[int(of_splits.sum(axis=1).round(9).argmax())]
            sizes /= sizes.max()
            order = np.argsort(-sizes, kind="stable")
            shares[v - 1, :v] = sizes[order]
            weights[v - 1] = simulate_ms(sizes.tolist(), pp, forward)
            places.append(order.tolist())
        return Ramps(shares, weights, places)

    @cached_property
    def shares_of(self) -> list[list[float]]:
        """List the shares for plain Python, by V."""
        return [row[: v + 1].tolist() for v, row in enumerate(self.shares)]

    def spread(
        self, number: int, time_ms: float, most_ms: float, overhead_ms: float
    ) -> tuple[Sizes, float]:
        """Spread a time over micro-batches of these sizes, none longer than ``most_ms``.

        Returns the sizes, and how much work they hold without the overhead of each (ms).
        """
        more = max(number - MOST_SIZES, 0)
        shares, left = self.shares_of[number - more - 1], time_ms
        weight = float(self.weights[number - more - 1]) + more
        largest, limited = left / weight, 0
        while limited < len(shares) and largest * shares[limited] > most_ms:
            equal = 1 if limited else more + 1
            left -= equal * most_ms
            weight -= equal * shares[limited]
            largest = left / weight
            limited += 1
        work = more * max(min(most_ms, largest) - overhead_ms, 0.0)
        for share in shares:
            room = min(most_ms, largest * share) - overhead_ms
            if room <= 0:
                break
            work += room
        return Sizes(most_ms, number, largest, shares), work

    def order(self, costs_ms: Sequence[float]) -> list[int]:
        """Return micro-batches in the order of these sizes, by their costs (ms)."""
        n = len(costs_ms)
        more = max(n - MOST_SIZES, 0)
        places = self.places[n - more - 1]
        # More than are kept go next to the largest.
        wide = [*range(places[0], places[0] + more)]
        wide += [place if place < places[0] else place + more for place in places]
        order = [0] * n
        for j, place in zip(sorted(range(n), key=lambda j: (-costs_ms[j], j)), wide, strict=True):
            order[place] = j
        return order
