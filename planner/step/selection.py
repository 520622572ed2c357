"""Selection: which candidate strategy runs this batch, and how, with a proven gap."""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.assembly import Selected
from seqplan.planner.placement.fill import Placement
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Models
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.strategies.constructive import Constructive, LayoutSchemes
from seqplan.planner.strategies.polishing import (
    bound_placement_ms,
    choose_sizes,
    exchange,
    exchange_roughly,
    place_on_ramps,
    polish,
    polish_stages,
)
from seqplan.planner.strategies.search import POLISHED, Search
from seqplan.planner.sync.times import NO_SYNC, SyncTimes, layouts_of
from seqplan.plans.plan import Considered
from seqplan.plans.scheme import Scheme, Strategy

CONSTRUCTED_GAIN = 1e-3
"""Share by which a constructed strategy has to beat the best, so that ties keep a candidate."""

FEW = 128
"""Sequences up to which fills leave pipelines without stages uneven enough to mislead: of 350 drawn
steps those of up to 110 became shorter by exchanges on other strategies, up to 4 %."""

MOST_AGAIN = 4
"""Placements near the best by a fill that are exchanged too, with stages and without; twice as many
gain nothing more."""

_BoundedLayout = tuple[float, float, LayoutSchemes]
"""A layout after the bound of its steps with sync, and its sync (ms)."""


def select(
    batch: Batch,
    candidates: Sequence[Strategy],
    models: Models,
    gpus: int,
    *,
    tailor: bool = True,
    sync: SyncTimes | None = None,
    prove: bool = True,
    layouts: Sequence[LayoutSchemes] | None = None,
) -> Selected:
    """Plan one batch on the best of ``candidates``, or on a strategy made for it.

    1. Every candidate gets a cheap bound.
    2. That of the least bound is placed; each other is given one fill just below the best time so
       far and is placed if that succeeds, or skipped if its bound forbids it (``Search.choose``).
    3. With ``tailor``, strategies made for the batch are tried: one of each layout of the
       candidates (``Constructive``), then the homogeneous ones; the best is changed while that
       shortens the step (``Search.improve``).
    4. Strategies with stages are tried again with the sizes of ramps (``_choose_sizes``).
    5. If it has stages, or if sequences are few, those that a fill finds a little slower are
       exchanged too: a fill estimates stages, and leaves few sequences uneven (``_look_again``).
    6. The best placement is polished and gets a close bound (``polish``). Without ``prove`` it has
       the cheap one, and no linear program is solved.

    The best has the least time with its ``sync``. If no candidate holds the longest
    sequence (or there is none), a strategy is constructed of whichever layout does. Raises
    ``Infeasible`` when none can. ``layouts``: those of ``models``, if they are made already.
    """
    search = Search(batch, models, gpus, sync or NO_SYNC)
    bounds = {strategy: search.bounds.bound_ms(strategy) for strategy in candidates}
    holding = [strategy for strategy in candidates if bounds[strategy] < inf]
    best = search.choose(None, holding)
    of_candidates = {scheme for strategy in candidates for scheme, _ in strategy.counts}
    allowed = list(layouts or LayoutSchemes.list_from_models(models)) if tailor else []
    if best is not None:
        kept = layouts_of(of_candidates)
        allowed = [layout for layout in allowed if layout.layout in kept]
    bounded = _bound_layouts(search, allowed)
    best = _construct_strategies(search, best, bounded) or best
    if best is not None and tailor:
        best = _improve(search, best, of_candidates, bounded)
    if best is None:
        raise Infeasible(_too_long(batch, candidates, models, tailor=tailor))
    search.times[best.strategy] = best.objective_ms
    best = _choose_sizes(search, best, holding, bounded)
    if best.fleet.has_stages or len(batch.lengths) <= FEW:
        best = _look_again(search, best, holding, bounded)
    if best.fleet.has_stages:
        proven = bound_placement_ms(batch, best, prove=prove)
    else:
        best, proven = polish(batch, best, prove=prove)
    search.times[best.strategy] = best.objective_ms
    considered = tuple(
        list_considered(strategy, bounds.get(strategy, proven), search.times.get(strategy), sync)
        for strategy in dict.fromkeys([*holding, best.strategy])
    )
    return Selected(best, proven, considered)


def list_considered(
    strategy: Strategy, bound_ms: float, time_ms: float | None, sync: SyncTimes | None
) -> Considered:
    """List a strategy; an estimate with stages may be below the bound, which it is raised to."""
    return Considered(
        strategy,
        bound_ms,
        None if time_ms is None else max(time_ms, bound_ms),
        None if sync is None else round(sync.of_strategy_ms(strategy), 3),
    )


def select_within(
    problem: PlanningProblem, models: Models, layouts: Sequence[LayoutSchemes], batch: Batch
) -> Selected:
    """Plan a batch of a problem on schemes of ``models`` alone, with the cheap bound.

    ``layouts``: those of ``models``. ``Infeasible`` as ``select``.
    """
    candidates = [s for s in problem.strategies if all(scheme in models for scheme, _ in s.counts)]
    gpus, sync = problem.workload.gpus, problem.sync
    return select(batch, candidates, models, gpus, sync=sync, prove=False, layouts=layouts)


def _improve(
    search: Search,
    best: Placement,
    of_candidates: Set[Scheme],
    layouts: Sequence[_BoundedLayout],
) -> Placement:
    """Try the homogeneous strategies of some layouts, then change the best.

    Few sequences may leave GPUs idle whatever runs, which no price of GPU-time reflects. Changed
    are groups of the candidates' schemes or, without candidates, of those in the layouts of the
    best.
    """
    total_ms = search.total_ms(best)
    schemes = dict.fromkeys(
        scheme for bound_ms, _, layout in layouts if bound_ms < total_ms for scheme in layout.models
    )
    homogeneous = [Strategy.from_counts({s: search.gpus // s.gpus}) for s in schemes]
    best = search.choose(best, homogeneous) or best
    used = {scheme for scheme, _ in best.strategy.counts}
    if not of_candidates:
        layouts_used = layouts_of(used)
        of_candidates = {scheme for scheme in schemes if (scheme.tp, scheme.pp) in layouts_used}
    return search.improve(best, sorted(of_candidates | used))


def _choose_sizes(
    search: Search,
    best: Placement,
    strategies: Sequence[Strategy],
    layouts: Sequence[_BoundedLayout],
) -> Placement:
    """Place the batch on strategies with stages in the sizes of ramps; the best if none beats it.

    On that of the best, on others, and on strategies constructed of ``layouts``.
    """
    batch, known = search.batch, best
    if best.fleet.has_stages:
        known = best = exchange_roughly(batch, best)
        search.times[best.strategy] = best.objective_ms
        known = place_on_ramps(batch, best.fleet, best.objective_ms) or best
    staged = [
        strategy
        for strategy in strategies
        if strategy != best.strategy and any(scheme.pp > 1 for scheme, _ in strategy.counts)
    ]
    known = search.choose(known, staged, ramped=True) or known
    of_stages = [entry for entry in layouts if entry[2].layout[1] > 1]
    ramped = _construct_strategies(search, known, of_stages, ramped=True) or known
    extra_ms = search.sync.extra_ms(ramped.strategy, best.strategy)
    return choose_sizes(batch, best, None if ramped is best else ramped, extra_ms)


def _look_again(
    search: Search,
    best: Placement,
    strategies: Sequence[Strategy],
    layouts: Sequence[_BoundedLayout],
) -> Placement:
    """Return the best placement after exchanges also of some that fills find slower.

    A fill leaves few sequences uneven, and estimates stages. Exchanged are the nearest of some
    strategies, the homogeneous ones and those constructed of ``layouts``, if their bounds allow it.
    If sequences are many and not about equal, estimates order those with stages well: then only
    strategies without stages are tried.
    """
    if not best.fleet.has_stages:
        best = exchange(search.batch, best)
    equal = FillTables.from_batch(search.batch).equal_up_to > 0
    most_stages = inf if equal or len(search.batch.lengths) <= FEW else 1
    limit_ms = search.total_ms(best)
    near_ms = limit_ms * POLISHED
    below = [e for e in layouts if e[0] < limit_ms and e[2].layout[1] <= most_stages]
    schemes = [scheme for _, _, layout in below for scheme in layout.models]
    homogeneous = [Strategy.from_counts({s: search.gpus // s.gpus}) for s in schemes]
    listed = [s for s in strategies if all(scheme.pp <= most_stages for scheme, _ in s.counts)]
    others = dict.fromkeys([*listed, *homogeneous])
    others.pop(best.strategy, None)
    promising = [s for s in others if search.bound_total_ms(s) < limit_ms]
    placements: dict[Strategy, Placement] = {}
    for strategy in promising:
        placement = search.place(strategy, near_ms)
        if placement is not None:
            placements[strategy] = placement
    for _, sync_ms, layout in below:
        constructed = Constructive(layout, search.batch, search.gpus).place(near_ms - sync_ms)
        if constructed is not None and constructed.strategy != best.strategy:
            placements.setdefault(constructed.strategy, constructed)
    flat = [placement for placement in placements.values() if not placement.fleet.has_stages]
    staged = [placement for placement in placements.values() if placement.fleet.has_stages]
    again = min([best, *flat], key=search.total_ms)

    def rate(placement: Placement) -> float:
        return search.total_ms(placement) + search.bound_total_ms(placement.strategy)

    for exchange_one, of_kind in ((exchange, flat), (exchange_roughly, staged)):
        for placement in sorted(of_kind, key=rate)[:MOST_AGAIN]:
            exchanged = exchange_one(search.batch, placement)
            if search.total_ms(exchanged) < search.total_ms(again) * (1 - CONSTRUCTED_GAIN):
                again = exchanged
    if again is not best and again.fleet.has_stages:
        again = polish_stages(search.batch, again)
    return again


def _bound_layouts(search: Search, layouts: Sequence[LayoutSchemes]) -> list[_BoundedLayout]:
    """Bound the steps of the layouts that hold the batch, the least first."""
    bounded = []
    for layout in layouts:
        if layout.holds(search.batch):
            sync_ms = search.sync.compute_exposed_ms([layout.layout])
            bound_ms = layout.bound_ms(search.batch, search.gpus) + sync_ms
            bounded.append((bound_ms, sync_ms, layout))
    return sorted(bounded, key=lambda entry: entry[:2])


def _construct_strategies(
    search: Search,
    best: Placement | None,
    layouts: Sequence[_BoundedLayout],
    *,
    ramped: bool = False,
) -> Placement | None:
    """Construct a strategy of each layout; the best of them, if it beats ``best``."""
    beaten = None
    for bound_ms, sync_ms, layout in layouts:
        limit = inf if best is None else search.total_ms(best)
        if bound_ms >= limit:
            break
        constructive = Constructive(layout, search.batch, search.gpus, ramped=ramped)
        placement = constructive.place((limit - sync_ms) * (1 - CONSTRUCTED_GAIN))
        if placement is not None:
            best = beaten = placement
    return beaten


def _too_long(batch: Batch, candidates: Sequence[Strategy], models: Models, *, tailor: bool) -> str:
    longest = batch.longest
    sample = batch.ids[batch.lengths.index(longest)]
    schemes = models if tailor else {s for strategy in candidates for s, _ in strategy.counts}
    most = max((models[scheme].max_sequence for scheme in schemes), default=0)
    holder = "scheme of the profile" if tailor else "candidate"
    fix = "truncate it or use more GPUs" if tailor else "propose again with lengths that reach it"
    return (
        f"step {batch.step}: sequence {sample} has {longest} tokens, but no {holder} holds more "
        f"than {most}; {fix}"
    )
