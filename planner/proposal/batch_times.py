"""The times of strategies on one sampled batch, and the bounds proven there."""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, weigh_time
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.bounds.with_sync import Families, FamilyRelaxation, sync_bound_ms
from seqplan.planner.lockstep.without_waiting import plan_without_waiting
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import ROUGHLY, exchange_sequences
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.strategies.regrouping import RegroupLayout, find_regrouping
from seqplan.planner.sync.times import SyncTimes
from seqplan.plans.scheme import Strategy

RUNGS = (1.01, 1.03, 1.08, 1.2, 1.5, 2.0, 4.0)
"""Times, relative to the best known for a batch, at which a strategy is tried on it."""

EXACT_BELOW = 1.08
"""Strategies this close to a batch's best are searched to their least time there."""

CLOSE = 0.015
"""A batch is searched when its best known strategy is further than this above the bound."""


class BatchTimes:
    """One batch: computation of strategies on it (ms), and its bound over all strategies.

    ``best_ms``: the least time with sync; ``reached_ms``: the least without it.
    """

    def __init__(self, batch: Batch, families: Families, sync: SyncTimes) -> None:
        self.batch = batch
        self.compute_ms: dict[Strategy, float] = {}
        self.best_ms = self.reached_ms = float("inf")
        self.gpus = families.whole.gpus
        self._families = families
        self._sync = sync
        self._lower = single_bound_ms(families.whole.classes, batch)
        self._rough: set[Strategy] = set()
        self._fits_ms: dict[AllStrategies, float] = {}

    def try_strategy(self, strategy: Strategy) -> None:
        """Find the strategy's time: exact if it comes close to the best, rough beyond.

        With stages simulated, or estimated.
        """
        if strategy in self.compute_ms:
            return
        fleet = Fleet.from_strategy(strategy, self._families.models)
        if fleet.max_sequence < self.batch.longest:
            self.compute_ms[strategy] = float("inf")
            return
        sync_ms = self._sync.of_strategy_ms(strategy)
        limit = max(self.best_ms - sync_ms, self._lower)
        reached = self._place(fleet, limit)
        if reached > limit * EXACT_BELOW:
            self._rough.add(strategy)
        self.compute_ms[strategy] = reached
        self.best_ms = min(self.best_ms, reached + sync_ms)
        self.reached_ms = min(self.reached_ms, reached)

    def refine(self, strategy: Strategy) -> None:
        """Find the exact time of a strategy that was tried, if it is rough."""
        if strategy in self._rough:
            self._rough.remove(strategy)
            fleet = Fleet.from_strategy(strategy, self._families.models)
            reached = self._place(fleet, self.compute_ms[strategy] / EXACT_BELOW)
            self.compute_ms[strategy] = min(self.compute_ms[strategy], reached)

    def _place(self, fleet: Fleet, limit_ms: float) -> float:
        """Place the batch: its time (ms), exact up to ``EXACT_BELOW`` times the limit."""
        filling = _strategy_time(Filler(fleet, self.batch), self._lower, limit_ms)
        if filling is not None and filling.objective_ms <= limit_ms * SIMULATED:
            filling = exchange_sequences(fleet, self.batch, filling, self._lower, effort=ROUGHLY)
        reached = float("inf") if filling is None else filling.objective_ms
        if fleet.has_stages:
            filler = Filler(fleet, self.batch, ramped=True)
            ramped = _strategy_time(filler, self._lower, limit_ms, reached)
            reached = reached if ramped is None else min(reached, ramped.objective_ms)
        return reached

    def time_ms(self, strategy: Strategy) -> float:
        """Return the time of a strategy that was tried, with its sync."""
        return self.compute_ms[strategy] + self._sync.of_strategy_ms(strategy)

    def regrouping_ms(self, layout: RegroupLayout, below_ms: float) -> float:
        """Find the time, with sync, of groups of a layout that regroup within the step.

        Infinite if none end before ``below_ms``.
        """
        if layout.max_sequence < self.batch.longest:
            return float("inf")
        below, least = below_ms - layout.sync_ms, float("inf")
        regrouped = find_regrouping(layout.classes, self.batch, self.gpus, below)
        if regrouped is not None:
            below = least = min(below, regrouped.objective_ms)
        models = self._families.models
        planned = plan_without_waiting(self.batch, layout, models, self.gpus, below)
        return (least if planned is None else planned[1]) + layout.sync_ms

    @cached_property
    def whole_bound_ms(self) -> float:
        """Return the bound over all strategies, each with its sync; once all are tried."""
        return sync_bound_ms(self._families, self.batch, self.best_ms)

    def close(self, space: FamilyRelaxation) -> bool:
        """Whether the best known time is close to the least of any strategy of ``space``."""
        compute_ms = self.best_ms - space.sync_ms
        if compute_ms <= self._lower * (1 + CLOSE):
            return True
        if not np.isfinite(compute_ms):
            return False
        if self.best_ms <= space.quick_bound_ms(self.batch):
            return True
        refuted, fits_ms = weigh_time(space.relaxation, self.batch, compute_ms / (1 + CLOSE))
        self._fits_ms[space.relaxation] = fits_ms
        return refuted

    def guess_ms(self, space: FamilyRelaxation) -> float:
        """Return about the time at which the space's relaxation fits."""
        return max(self._fits_ms.get(space.relaxation, 0.0), self._lower)

    def best_known(self, space: AllStrategies) -> list[Strategy]:
        """List the fastest strategies of ``space`` tried, without those that cannot run it."""
        runnable = [
            strategy
            for strategy, time in self.compute_ms.items()
            if np.isfinite(time) and all(scheme in space.models for scheme, _ in strategy.counts)
        ]
        return sorted(runnable, key=self.time_ms)[:3]


SIMULATED = 1.01
"""Sequences of strategies that are this close to the best are roughly exchanged, and with stages
their times simulated: else some are proposed that are 2 % slower than others without stages."""


def _strategy_time(
    filler: Filler, lower_ms: float, best_ms: float, below_ms: float = inf
) -> Filling | None:
    """Place a batch on a strategy: in its least time if that is close to the best, else roughly.

    None if it does not end before ``below_ms``.
    """
    for rung in RUNGS if np.isfinite(best_ms) else ():
        time_ms = max(lower_ms, best_ms * rung)
        if time_ms >= below_ms and rung > EXACT_BELOW:
            return None
        filling = filler.fill(time_ms)
        if isinstance(filling, Filling):
            if rung <= EXACT_BELOW:
                return dispatch(filler, lower_ms, known=filling)
            return filling
    return dispatch(filler, best_ms * RUNGS[-1] if np.isfinite(best_ms) else lower_ms)
