"""Search over strategies on ranks of different speeds, each judged by placing the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Models
from seqplan.planner.placement.slowdown import Slowdown, make_slow_fleet
from seqplan.planner.strategies.polishing import polish
from seqplan.planner.sync.times import SyncTimes, layouts_of
from seqplan.plans.scheme import Scheme, Strategy

MOST_FILLS = 100
"""Fills from a start after which no further change is tried; more hardly gain."""

MOST_LISTED = 400
"""Strategies of a start's layouts, all of which are tried up to so many: those of 8 ranks."""

LEAST_GAIN = 1e-4
"""Share by which a change has to shorten the step."""

POLISHED = 1.1
"""Placements up to so many times the shortest are polished, which may change their order."""


@dataclass(frozen=True)
class SearchStart:
    """Where the search begins: a placement on schemes of ``models``.

    ``bound_ms``: of every plan on them, with sync.
    """

    placement: Placement
    models: Models
    bound_ms: float = 0.0


@dataclass
class UnevenSearch:
    """A search for one batch on ranks of these speeds.

    ``times``: those of the strategies that were placed (ms).
    """

    batch: Batch
    speeds: Slowdown
    sync: SyncTimes
    times: dict[Strategy, float] = field(default_factory=dict)
    fills: int = 0

    def begin(self, strategy: Strategy, models: Models, bound_ms: float = 0.0) -> SearchStart:
        """Begin at a strategy, which lost ranks may break up (``Slowdown.fit``).

        If the rest does not hold the batch, at the fastest single pipeline that does.
        """
        fitted = self.speeds.fit(strategy, models)
        strategies = [fitted, *(Strategy.from_counts({scheme: 1}) for scheme in models)]
        placed = (self._place(strategy, models) for strategy in strategies)
        first = next(placed)
        if first is None:
            first = min(filter(None, placed), key=self.total_ms)
        return SearchStart(first, models, bound_ms)

    def run(self, starts: Sequence[SearchStart], *, prove: bool) -> tuple[Placement, float]:
        """Improve each start, the fastest first; return the best placement and its bound (ms)."""
        improved: list[Placement] = []
        least_ms = inf
        for start in sorted(starts, key=lambda start: self.total_ms(start.placement)):
            if start.bound_ms < least_ms:
                improved.append(self._improve(start))
                least_ms = min(least_ms, self.total_ms(improved[-1]))
        polished = [
            polish(self.batch, placement, prove=prove)
            for placement in improved
            if self.total_ms(placement) <= POLISHED * least_ms
        ]
        best, bound_ms = min(polished, key=lambda entry: self.total_ms(entry[0]))
        self.times[best.strategy] = best.objective_ms
        return best, bound_ms

    def total_ms(self, placement: Placement) -> float:
        """Time a placement with its sync (ms)."""
        return placement.objective_ms + self.sync.of_strategy_ms(placement.strategy)

    def _improve(self, start: SearchStart) -> Placement:
        """Find the best strategy in a start's layouts, of all if they are few.

        Else the start's is changed as long as a change shortens the step.
        """
        best, visited = start.placement, {start.placement.strategy}
        layouts = layouts_of(scheme for scheme, _ in best.strategy.counts)
        schemes = [s for s in start.models if (s.tp, s.pp) in layouts]
        gpus = len(self.speeds.order)
        few, self.fills = list_strategies(schemes, gpus), 0
        for strategy in few or ():
            best = self._place(strategy, start.models, self._limit_ms(best)) or best
        while few is None:
            changed = list_changes(best.strategy, schemes, gpus)
            better = self._find_better(best, start.models, changed, visited)
            if better is None:
                break
            best = better
        return best

    def _find_better(
        self,
        best: Placement,
        models: Models,
        strategies: Iterable[Strategy],
        visited: set[Strategy],
    ) -> Placement | None:
        """Find the first of some strategies that shortens the step; None without one."""
        for strategy in strategies:
            if self.fills >= MOST_FILLS:
                return None
            if strategy not in visited:
                visited.add(strategy)
                placement = self._place(strategy, models, self._limit_ms(best))
                if placement is not None:
                    return placement
        return None

    def _limit_ms(self, best: Placement) -> float:
        """Return the time with sync (ms) below which a placement is better."""
        return self.total_ms(best) * (1 - LEAST_GAIN)

    def _place(self, strategy: Strategy, models: Models, below_ms: float = inf) -> Placement | None:
        """Place the batch on a strategy; None if that does not end before ``below_ms``."""
        placed = self.speeds.place(strategy)
        if not placed:
            return None
        fleet = make_slow_fleet(strategy, models, [factor for _, factor in placed])
        if fleet.max_sequence < self.batch.longest:
            return None
        lower_ms = cheap_bound_ms(fleet.classes, self.batch)
        limit_ms = below_ms - self.sync.of_strategy_ms(strategy)
        if lower_ms >= limit_ms:
            return None
        filler, known = Filler(fleet, self.batch), None
        if below_ms < inf:
            self.fills += 1
            known = probe(filler, lower_ms, limit_ms)
            if known is None:
                return None
        filling = dispatch(filler, lower_ms, known=known)
        if filling is None:
            return None
        self.times[strategy] = filling.objective_ms
        return Placement(fleet, filling)


def list_strategies(schemes: Collection[Scheme], gpus: int) -> list[Strategy] | None:
    """List every strategy on as many ranks at most; None for more than ``MOST_LISTED``."""
    counts: list[tuple[tuple[int, ...], int]] = [((), gpus)]
    for scheme in schemes:
        counts = [
            ((*before, count), left - count * scheme.gpus)
            for before, left in counts
            for count in range(left // scheme.gpus + 1)
        ]
        if len(counts) > MOST_LISTED:
            return None
    strategies = (
        Strategy.from_counts(dict(zip(schemes, of_schemes, strict=True)))
        for of_schemes, _ in counts
    )
    return [strategy for strategy in strategies if strategy.counts]


def list_changes(strategy: Strategy, schemes: Collection[Scheme], gpus: int) -> Iterator[Strategy]:
    """List the strategies that differ by one change, on as many ranks at most.

    Pipelines of one scheme become some of another, all of them or as few as are enough for one;
    one pipeline is left out; one is added, on idle ranks and those of the smallest pipelines.
    """
    counts, idle = Counter(dict(strategy.counts)), gpus - strategy.gpus
    ascending = sorted(schemes, key=lambda scheme: (scheme.gpus, scheme))
    for outgoing, count in strategy.counts:
        for incoming in ascending:
            fewest = -(-incoming.gpus // outgoing.gpus)
            for given in dict.fromkeys((count, fewest)) if fewest <= count else ():
                taken = given * outgoing.gpus // incoming.gpus
                yield _change(counts, {outgoing: given}, incoming, taken)
        if counts.total() > 1:
            yield _change(counts, {outgoing: 1}, outgoing, 0)
    for incoming in ascending:
        freed, free = Counter[Scheme](), idle
        for scheme in sorted(counts, key=lambda scheme: (scheme.gpus, scheme)):
            lacking = max(0, incoming.gpus - free)
            freed[scheme] = min(counts[scheme], -(-lacking // scheme.gpus))
            free += freed[scheme] * scheme.gpus
        if free >= incoming.gpus:
            yield _change(counts, freed, incoming, 1)


def _change(
    counts: Counter[Scheme], given: dict[Scheme, int], incoming: Scheme, taken: int
) -> Strategy:
    """Give up some pipelines for so many of ``incoming``."""
    changed = counts.copy()
    changed.subtract(given)
    changed[incoming] += taken
    return Strategy.from_counts(changed)
