"""Our proposal: candidate strategies for a data set, from sampled batches.

Strategies are judged by real placement of whole batches, and against a lower bound over all
strategies. Where parameters and gradients take longer to exchange between different replicas than
between equal ones, that counts in a strategy's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import FITS, AllStrategies, all_strategies_bound_ms
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.bounds.with_exchange import Families, exchange_bound_ms
from seqplan.planner.exchange import NO_EXCHANGE, Exchange, replicas_differ
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.planner.proposal.search import search
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.plans.scheme import Strategy

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


RUNGS = (1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0)
"""Times, relative to the best known for a batch, at which a strategy is tried on it."""

EXACT_BELOW = 1.03
"""Strategies this close to a batch's best are searched to their least time there."""


CLOSE = 0.015
"""A batch is searched when its best known strategy is further than this above the bound."""


@dataclass(frozen=True)
class Effort:
    """How many batches are judged, how many of them at most searched, and what is kept."""

    judged: int = 64
    searched: int = 48
    kept: int = 10


@dataclass(frozen=True)
class Proposed:
    """A kept strategy: ``expected_ms`` over the judged batches it can run, and how often it won.

    ``runs``: share of the judged batches it can run; ``wins``: share on which it is the best kept.
    """

    strategy: Strategy
    max_sequence: int
    expected_ms: float
    runs: float
    wins: float


@dataclass(frozen=True)
class Proposal:
    """Kept candidates and what they are worth: means over the judged batches, in ms.

    All with the exchange that the proposal was made for.
    ``expected_ms``: best kept strategy per batch; ``pool_ms``: best of all strategies found;
    ``lower_bound_ms``: proven, over all strategies of these schemes and GPUs.
    """

    candidates: tuple[Proposed, ...]
    expected_ms: float
    pool_ms: float
    lower_bound_ms: float
    judged: int
    explored: int


def propose(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    effort: Effort,
    exchange: Exchange = NO_EXCHANGE,
    progress: Progress | None = None,
) -> Proposal:
    """Propose strategies for data like ``batches``, of which ``effort.judged`` are looked at.

    1. Where the exchange can decide, every homogeneous strategy is among those to judge.
    2. Batch by batch, the strategies found so far are tried. Where the best of them is not close to
       the bound over all strategies, and for at most ``effort.searched`` batches, strategies are
       searched for the batch (``search``: the relaxation's fractional pipeline counts rounded, and
       swaps judged by placement) and join those found.
    3. When none found holds ``max_len`` tokens, one is searched for a batch that has such a
       sequence; where the exchange can decide, so it is when none of different replicas does.
    4. All strategies are timed on all batches, and the ``effort.kept`` are kept that together leave
       the least mean time of the best per batch (``conclude``).

    At least one kept candidate holds ``max_len`` tokens. Raises ``ValueError`` when no scheme does.
    """
    report = progress or (lambda stage, done, total: None)
    all_strategies = AllStrategies(models, gpus)
    families = Families(models, gpus)
    judged = [_BatchTimes(b, all_strategies, families, exchange) for b in batches[: effort.judged]]
    strategies: list[Strategy] = []
    if exchange.decides:
        strategies = homogeneous_strategies(models, gpus, 1)
    searches = 0
    for done, batch_times in enumerate(judged):
        report("searching strategies", done, len(judged))
        for strategy in strategies:
            batch_times.try_strategy(strategy)
        if searches < effort.searched and not batch_times.close():
            searches += 1
            known = batch_times.best_known()
            for strategy in search(all_strategies, batch_times.batch, batch_times.bound_ms, known):
                batch_times.try_strategy(strategy)
                if strategy not in strategies:
                    strategies.append(strategy)
    if not any(_reach(strategy, models) >= max_len for strategy in strategies):
        longest = Batch.of_lengths([max_len, *batches[0].lengths])
        strategies += [s for s in search(all_strategies, longest)[:1] if s not in strategies]
    if exchange.decides and not any(
        _differs(s) and _reach(s, models) >= max_len for s in strategies
    ):
        longest = Batch.of_lengths([max_len, *batches[0].lengths])
        strategies += [
            s for s in search(all_strategies, longest) if _differs(s) and s not in strategies
        ]
    return conclude(
        strategies, judged, models, max_len, effort.kept, report=report, exchange=exchange
    )


def evaluate_strategies(
    strategies: Sequence[Strategy],
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    effort: Effort,
    progress: Progress | None = None,
) -> Proposal:
    """Judge given strategies like found ones, and keep the few that serve best together."""
    report = progress or (lambda stage, done, total: None)
    all_strategies = AllStrategies(models, gpus)
    families = Families(models, gpus)
    judged = [
        _BatchTimes(b, all_strategies, families, NO_EXCHANGE) for b in batches[: effort.judged]
    ]
    return conclude(strategies, judged, models, max_len, effort.kept, report=report)


class _BatchTimes:
    """One batch: the times of strategies on it, and its bound over all strategies.

    ``times`` and ``best_ms`` hold the exchange; ``reached_ms``: the least time without it.
    """

    def __init__(
        self, batch: Batch, all_strategies: AllStrategies, families: Families, exchange: Exchange
    ) -> None:
        self.batch = batch
        self.times: dict[Strategy, float] = {}
        self.best_ms = self.reached_ms = float("inf")
        self._all_strategies = all_strategies
        self._families = families
        self._exchange = exchange
        self._lower = single_bound_ms(all_strategies.classes, batch)
        self._bound: tuple[float, float] | None = None

    def try_strategy(self, strategy: Strategy) -> None:
        """Find the strategy's time: exact where it comes close to the best, rough beyond."""
        if strategy in self.times:
            return
        fleet = Fleet.of(strategy, self._all_strategies.models)
        if fleet.max_sequence < self.batch.longest:
            self.times[strategy] = float("inf")
            return
        exchange_ms = self._exchange.of_strategy_ms(strategy)
        limit = max(self.best_ms - exchange_ms, self._lower)
        filling = _strategy_time(Filler(fleet, self.batch), self._lower, limit)
        propagation_ms = float("inf") if filling is None else filling.objective_ms
        self.times[strategy] = propagation_ms + exchange_ms
        self.best_ms = min(self.best_ms, self.times[strategy])
        self.reached_ms = min(self.reached_ms, propagation_ms)

    @property
    def bound_ms(self) -> float:
        """Return what is proven over all strategies, without the exchange.

        Sought below the best time known when it is first needed.
        """
        if not np.isfinite(self.reached_ms):
            return self._lower
        if self._bound is None or self.reached_ms < self._bound[1] / (1 + FITS):
            bound = all_strategies_bound_ms(self._all_strategies, self.batch, self.reached_ms)
            self._bound = (max(bound, self._bound[0] if self._bound else 0.0), self.reached_ms)
        return min(self._bound[0], self.reached_ms)

    @property
    def whole_bound_ms(self) -> float:
        """Return what is proven over all strategies, each with its exchange."""
        bound = exchange_bound_ms(self._families, self.batch, self.bound_ms, self._exchange)
        return min(bound, self.best_ms)

    def close(self) -> bool:
        """Whether the best known time is close to what a search could find.

        It finds different replicas; equal ones are known beforehand where the exchange matters.
        """
        propagation_ms = self.best_ms - self._exchange.exposed_ms(True)
        if propagation_ms <= self._lower * (1 + CLOSE):
            return True
        return bool(np.isfinite(propagation_ms)) and propagation_ms <= self.bound_ms * (1 + CLOSE)

    def best_known(self) -> list[Strategy]:
        """List the fastest strategies tried, those that cannot run the batch left out."""
        runnable = [s for s in self.times if np.isfinite(self.times[s])]
        return sorted(runnable, key=lambda s: self.times[s])[:3]


def conclude(
    strategies: Sequence[Strategy],
    judged: Sequence[_BatchTimes],
    models: Models,
    max_len: int,
    most_kept: int,
    report: Progress,
    exchange: Exchange = NO_EXCHANGE,
) -> Proposal:
    """Time all strategies on all batches, and keep those that serve best together.

    At most ``most_kept`` of them by their times alone.

    Where the exchange can decide, the best of equal and the best of different replicas are among
    them, so that a step unlike the judged ones has both to choose from.
    """
    fleets = [Fleet.of(strategy, models) for strategy in strategies]
    order = list(strategies)
    for done, batch_times in enumerate(judged):
        report("judging strategies", done, len(judged))
        for strategy in order:
            batch_times.try_strategy(strategy)
        batch_ms = batch_times.times
        order.sort(key=lambda s: batch_ms[s])  # the next begins with what served this one
    report("judging strategies", len(judged), len(judged))
    times = np.array(
        [[batch_times.times[strategy] for batch_times in judged] for strategy in strategies]
    )
    bounds = np.array([batch_times.whole_bound_ms for batch_times in judged])
    holds = [fleet.max_sequence >= max_len for fleet in fleets]
    chosen = _keep(times, holds, most_kept)
    if exchange.decides:
        chosen += _best_of_each(times, holds, strategies, chosen)
    of_chosen = times[chosen]
    winner = of_chosen.argmin(axis=0)
    candidates = tuple(
        Proposed(
            strategies[i],
            max_sequence=fleets[i].max_sequence,
            expected_ms=(
                float(np.mean(row[np.isfinite(row)])) if np.isfinite(row).any() else float("nan")
            ),
            runs=float(np.isfinite(row).mean()),
            wins=float((winner == place).mean()),
        )
        for place, (i, row) in enumerate(zip(chosen, of_chosen, strict=True))
    )
    return Proposal(
        candidates=candidates,
        expected_ms=float(of_chosen.min(axis=0).mean()),
        pool_ms=float(times.min(axis=0).mean()),
        lower_bound_ms=float(bounds.mean()),
        judged=len(judged),
        explored=len(strategies),
    )


def _strategy_time(filler: Filler, lower_ms: float, best_ms: float) -> Filling | None:
    """Place a batch on a strategy: in its least time if that is close to the best, else roughly."""
    if not np.isfinite(best_ms):
        return dispatch(filler, lower_ms)
    for rung in RUNGS:
        filling = filler.fill(max(lower_ms, best_ms * rung))
        if isinstance(filling, Filling):
            if rung <= EXACT_BELOW:
                return dispatch(filler, lower_ms, known=filling)
            return filling
    return dispatch(filler, best_ms * RUNGS[-1])


def _keep(times: npt.NDArray[np.float64], holds: Sequence[bool], most_kept: int) -> list[int]:
    """Choose by greedy k-median the strategies whose best per batch has the least mean.

    One of them holds max_len, where any does. Stops early when a further strategy gains less than
    0.01 %.
    """
    chosen: list[int] = []
    best = np.full(times.shape[1], np.inf)
    penalty = 10 * float(times[np.isfinite(times)].max()) if np.isfinite(times).any() else 1.0
    capped = np.minimum(times, penalty)
    while len(chosen) < min(most_kept, len(times)):
        means = np.minimum(best, capped).mean(axis=1)
        best_next = int(means.argmin())
        if chosen and means[best_next] > best.mean() * (1 - 1e-4):
            break
        chosen.append(best_next)
        best = np.minimum(best, capped[best_next])
    if not any(holds[i] for i in chosen):
        holding = [i for i in range(len(times)) if holds[i]]
        if holding:
            chosen = [*chosen[: most_kept - 1], min(holding, key=lambda i: float(capped[i].mean()))]
    return chosen


def _best_of_each(
    times: npt.NDArray[np.float64],
    holds: Sequence[bool],
    strategies: Sequence[Strategy],
    chosen: Sequence[int],
) -> list[int]:
    """Find the best holding strategy of equal and of different replicas, unless it is chosen."""
    added = []
    for differ in (False, True):
        of_kind = [
            i for i, strategy in enumerate(strategies) if holds[i] and _differs(strategy) is differ
        ]
        best = min(of_kind, key=lambda i: float(times[i].mean()), default=None)
        if best is not None and best not in chosen:
            added.append(best)
    return added


def _differs(strategy: Strategy) -> bool:
    return replicas_differ(scheme for scheme, _ in strategy.counts)


def _reach(strategy: Strategy, models: Models) -> int:
    return max(models[scheme].max_sequence for scheme, _ in strategy.counts)
