"""Selection: which candidate strategy runs this batch, and how, with a proven gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify, cheap_bound_ms
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.bounds.step_bounds import area_bound_ms, single_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.exchange import NO_EXCHANGE, Exchange
from seqplan.planner.placement.balance import balance
from seqplan.planner.placement.dispatch import TOLERANCE, dispatch, level, probe
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.strategies.local_search import improve
from seqplan.planner.strategies.rounding import rounded_strategies
from seqplan.plans.scheme import Strategy

TAILOR_GAIN = 0.01
"""A strategy is made for the batch where the relaxation promises at least this share."""

TAILOR_ROUNDS = 4
"""Exchanges that the strategy made for the batch may accept."""

FIRST_FILL = 1.01
"""Candidates are ordered by a fill at this multiple of the least of their bounds."""

BALANCE_GAP = 2e-3
"""The gap above which sequences are exchanged between pipelines."""


@dataclass(frozen=True)
class Judged:
    """A candidate of one step: lower bound on its time, and its time unless it was pruned.

    Both without the exchange.
    """

    strategy: Strategy
    lower_bound_ms: float
    predicted_ms: float | None


@dataclass(frozen=True)
class Selected:
    """The chosen strategy with its placement and a proven lower bound on it (form S, ms).

    Neither holds the exchange: it is one constant for all placements of a strategy, and in both it
    would only make the gap look smaller.
    """

    fleet: Fleet
    filling: Filling
    lower_bound_ms: float
    judged: tuple[Judged, ...]


def select(
    batch: Batch,
    candidates: Sequence[Strategy],
    models: Models,
    gpus: int,
    *,
    tailor: bool = True,
    exchange: Exchange = NO_EXCHANGE,
) -> Selected:
    """Plan one batch on the best of ``candidates``, or on a strategy made for it.

    Candidates are visited by their bound; the first is planned, each other is given one fill just
    below the best time so far and is planned if that succeeds. Raises ``Infeasible`` when the
    longest sequence fits no candidate. With ``tailor``, a strategy made for the batch from the
    candidates' schemes is tried too. The best has the least time with its ``exchange``.
    """
    fleets = [Fleet.of(strategy, models) for strategy in candidates]
    able = [fleet for fleet in fleets if fleet.max_sequence >= batch.longest]
    if not able:
        raise Infeasible(_too_long(batch, fleets))
    bounds = {fleet.strategy: cheap_bound_ms(fleet.classes, batch) for fleet in able}
    best: tuple[Fleet, Filling] | None = None
    planned: dict[Strategy, float] = {}
    for filler, first in _by_first_fill(able, batch, bounds, exchange):
        fleet = filler.fleet
        bound = bounds[fleet.strategy]
        limit = float("inf") if best is None else _limit_ms(best, fleet.strategy, exchange)
        if best is None:
            filling = dispatch(filler, bound, known=first)
        elif bound < limit:
            better = first or probe(filler, bound, limit)
            filling = None if better is None else dispatch(filler, bound, known=better)
        else:
            filling = None
        if filling is not None:
            planned[fleet.strategy] = filling.objective_ms
            if best is None or filling.objective_ms < limit:
                best = (fleet, filling)
    if best is None:
        raise Infeasible(_too_long(batch, fleets))
    if tailor:
        best = _tailor(batch, best, models, candidates, gpus, exchange)
        planned[best[0].strategy] = best[1].objective_ms
    fleet, filling = best
    proven = certify(fleet, batch, filling.objective_ms)
    # The search ends within its tolerance; often the proven bound itself can be met.
    met = None
    if proven < filling.objective_ms <= proven * (1 + 2 * TOLERANCE):
        met = Filler(fleet, batch).fill(proven * (1 + 1e-9))
    if met is not None and met.objective_ms < filling.objective_ms:
        filling = met
    elif filling.objective_ms > proven * (1 + BALANCE_GAP):
        filling = balance(fleet, batch, filling, proven)
    filling = level(Filler(fleet, batch), filling, area_bound_ms(fleet.classes, batch))
    planned[fleet.strategy] = filling.objective_ms
    judged = [
        Judged(strategy, bounds.get(strategy, proven), planned.get(strategy))
        for strategy in [*bounds, *(s for s in planned if s not in bounds)]
    ]
    return Selected(fleet, filling, proven, tuple(judged))


def _limit_ms(best: tuple[Fleet, Filling], strategy: Strategy, exchange: Exchange) -> float:
    """What a strategy must stay below to beat the best, given what the exchange of each takes."""
    dearer = exchange.of_strategy_ms(strategy) - exchange.of_strategy_ms(best[0].strategy)
    return best[1].objective_ms - dearer


def _by_first_fill(
    able: Sequence[Fleet], batch: Batch, bounds: Mapping[Strategy, float], exchange: Exchange
) -> list[tuple[Filler, Filling | None]]:
    """Candidates in the order in which they promise most, by one fill each at a common time.

    First those that succeed, by their time with the exchange; then by how much was missing.
    """
    beside = {fleet.strategy: exchange.of_strategy_ms(fleet.strategy) for fleet in able}
    target = min(bounds[strategy] * FIRST_FILL + beside[strategy] for strategy in beside)
    tried = []
    for fleet in able:
        filler = Filler(fleet, batch)
        filling = filler.fill(max(target - beside[fleet.strategy], bounds[fleet.strategy]))
        promise = filler.short_by
        if filling is not None:
            promise = filling.objective_ms + beside[fleet.strategy]
        tried.append((filling is None, promise, filler, filling))
    tried.sort(key=lambda t: t[:2])
    return [(filler, filling) for _, _, filler, filling in tried]


def _tailor(
    batch: Batch,
    best: tuple[Fleet, Filling],
    models: Models,
    candidates: Sequence[Strategy],
    gpus: int,
    exchange: Exchange,
) -> tuple[Fleet, Filling]:
    """A strategy made for this batch from the candidates' schemes, where it beats the best."""
    schemes = sorted({scheme for strategy in candidates for scheme, _ in strategy.counts})
    classes = [PipelineClass.of(models[scheme], 1) for scheme in schemes]
    lower = single_bound_ms(classes, batch)
    # What is made here is heterogeneous: what different replicas exchange more, it must gain.
    dearer = exchange.exposed_ms(True) - exchange.of_strategy_ms(best[0].strategy)
    objective = best[1].objective_ms - max(0.0, dearer)
    if objective <= lower * (1 + TAILOR_GAIN):
        return best
    relaxed = relax(classes, batch, objective, gpus)
    if relaxed is None or relaxed.scale > 1 - TAILOR_GAIN:
        return best
    pipelines = relaxed.pipelines / relaxed.scale
    known = set(candidates)
    for strategy in rounded_strategies(schemes, pipelines, models, gpus, batch.longest):
        if strategy in known:
            continue
        fleet = Fleet.of(strategy, models)
        filler = Filler(fleet, batch)
        limit = _limit_ms(best, strategy, exchange)
        better = probe(filler, lower, limit)
        if better is not None:
            filling = dispatch(filler, lower, known=better)
            if filling is not None and filling.objective_ms < limit:
                best = (fleet, filling)
    if best[1].objective_ms > objective * relaxed.scale * (1 + TAILOR_GAIN):
        best = improve(
            batch, best, models, schemes, gpus, lower, rounds=TAILOR_ROUNDS, exchange=exchange
        )
    return best


def _too_long(batch: Batch, fleets: Sequence[Fleet]) -> str:
    longest = batch.longest
    sample = batch.ids[batch.lengths.index(longest)]
    limit = max(fleet.max_sequence for fleet in fleets)
    return (
        f"step {batch.step}: sequence {sample} has {longest} tokens, but no candidate holds more "
        f"than {limit}; propose again with lengths that reach {longest}, or more GPUs"
    )
