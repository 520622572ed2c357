"""Search over strategies for one batch, each judged by placing the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.bounds.strategy_bounds import StrategyBounds
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.planner.placement.slowdown import Slowdown, make_slow_fleet
from seqplan.planner.strategies.polishing import polish
from seqplan.planner.sync.times import NO_SYNC, SyncTimes, layouts_of
from seqplan.plans.scheme import Scheme, Strategy

MOST_FILLS = 100
"""Fills from a start after which no further change is tried; more hardly gain."""

MOST_LISTED = 400
"""Strategies of a start's layouts, all of which are tried up to so many: those of 8 ranks."""

LEAST_GAIN = 1e-4
"""Share by which a strategy has to shorten the step."""

POLISHED = 1.1
"""Placements up to so many times the shortest are polished, which may change their order."""


@dataclass(frozen=True)
class SearchStart:
    """Where a search begins: a placement, and the schemes whose pipelines may join.

    ``bound_ms``: of every plan on them, with sync.
    """

    placement: Placement
    schemes: Collection[Scheme]
    bound_ms: float = 0.0


@dataclass
class Search:
    """A search for one batch on ``gpus`` ranks, with these schemes' models.

    Strategies are compared by their time with what the ``sync`` of parameters and gradients takes;
    placements state forward and backward alone. ``speeds``: of ranks that differ; ``times``: of
    the strategies that were placed (ms).
    """

    batch: Batch
    models: Models
    gpus: int
    sync: SyncTimes = NO_SYNC
    speeds: Slowdown | None = None
    times: dict[Strategy, float] = field(default_factory=dict)
    fills: int = 0

    def __post_init__(self) -> None:
        self.bounds = StrategyBounds(self.batch, self.models)

    def begin(
        self, strategy: Strategy, schemes: Collection[Scheme], bound_ms: float = 0.0
    ) -> SearchStart:
        """Begin at a strategy, which lost ranks may break up (``Slowdown.fit``).

        If the rest does not hold the batch, at the fastest single pipeline that does.
        """
        fitted = strategy
        if self.speeds is not None:
            fitted = self.speeds.fit(strategy, {scheme: self.models[scheme] for scheme in schemes})
        strategies = [fitted, *(Strategy.from_counts({scheme: 1}) for scheme in schemes)]
        placed = (self.place(strategy) for strategy in strategies)
        first = next(placed)
        if first is None:
            first = min(filter(None, placed), key=self.total_ms)
        return SearchStart(first, schemes, bound_ms)

    def run(self, starts: Sequence[SearchStart], *, prove: bool) -> tuple[Placement, float]:
        """Improve each start, the fastest first; return the best placement and its bound (ms)."""
        improved: list[Placement] = []
        least_ms = inf
        for start in sorted(starts, key=lambda start: self.total_ms(start.placement)):
            if start.bound_ms < least_ms:
                improved.append(self._improve_start(start))
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

    def bound_total_ms(self, strategy: Strategy) -> float:
        """Bound a strategy's time with its sync (ms)."""
        return self.bounds.bound_ms(strategy) + self.sync.of_strategy_ms(strategy)

    def improve(self, best: Placement, schemes: Collection[Scheme]) -> Placement:
        """Change a placement's strategy as long as a change shortens the step.

        Each gives some of its pipelines for those of some scheme (``list_changes``).
        """
        visited, self.fills = {best.strategy}, 0
        while True:
            changed = list_changes(best.strategy, schemes, self.gpus)
            better = self._find_better(best, changed, visited)
            if better is None:
                return best
            best = better

    def choose(
        self, best: Placement | None, strategies: Iterable[Strategy], *, ramped: bool = False
    ) -> Placement | None:
        """Choose the best of a placement, if there is one, and those on some strategies.

        Strategies are tried by ascending bound; ``ramped``: as of ``Filler``.
        """
        totals = {strategy: self.bound_total_ms(strategy) for strategy in strategies}
        for strategy in sorted(totals, key=lambda strategy: totals[strategy]):
            below_ms = inf if best is None else self._limit_ms(best)
            if totals[strategy] >= below_ms:
                break
            best = self.place(strategy, below_ms, ramped=ramped) or best
        return best

    def _improve_start(self, start: SearchStart) -> Placement:
        """Find the best strategy in a start's layouts, of all if they are few."""
        layouts = layouts_of(scheme for scheme, _ in start.placement.strategy.counts)
        schemes = [s for s in start.schemes if (s.tp, s.pp) in layouts]
        few = list_strategies(schemes, self.gpus)
        if few is None:
            return self.improve(start.placement, schemes)
        return self.choose(start.placement, few) or start.placement

    def _find_better(
        self, best: Placement, strategies: Iterable[Strategy], visited: set[Strategy]
    ) -> Placement | None:
        """Find the first of some strategies that shortens the step; None without one."""
        for strategy in strategies:
            if self.fills >= MOST_FILLS:
                return None
            if strategy not in visited:
                visited.add(strategy)
                placement = self.place(strategy, self._limit_ms(best))
                if placement is not None:
                    return placement
        return None

    def _limit_ms(self, best: Placement) -> float:
        """Return the time with sync (ms) below which a placement is better."""
        return self.total_ms(best) * (1 - LEAST_GAIN)

    def place(
        self, strategy: Strategy, below_ms: float = inf, *, ramped: bool = False
    ) -> Placement | None:
        """Place the batch on a strategy; None if that does not end before ``below_ms``."""
        limit_ms = below_ms - self.sync.of_strategy_ms(strategy)
        lower_ms = self.bounds.bound_ms(strategy)
        if lower_ms >= limit_ms:
            return None
        fleet = self._make_fleet(strategy)
        if fleet is None or fleet.max_sequence < self.batch.longest:
            return None
        if self.speeds is not None:
            lower_ms = cheap_bound_ms(fleet.classes, self.batch)
            if lower_ms >= limit_ms:
                return None
        filler, known = Filler(fleet, self.batch, ramped=ramped), None
        if below_ms < inf:
            self.fills += 1
            known = probe(filler, lower_ms, limit_ms)
            if known is None:
                return None
        filling = dispatch(filler, lower_ms, known=known)
        if filling is None:
            return None
        self.times[strategy] = min(filling.objective_ms, self.times.get(strategy, inf))
        return Placement(fleet, filling)

    def _make_fleet(self, strategy: Strategy) -> Fleet | None:
        """Make the pipelines of a strategy; None if they do not fit between lost ranks."""
        if self.speeds is None:
            return Fleet.from_strategy(strategy, self.models)
        placed = self.speeds.place(strategy)
        if not placed:
            return None
        return make_slow_fleet(strategy, self.models, [factor for _, factor in placed])


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
