"""Selection: which candidate strategy runs this batch, and how, with a proven gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, single_bound_ms
from seqplan.planner.bounds.relaxation import solve_scale
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.assembly import Selected
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.exchange import ROUGHLY
from seqplan.planner.placement.fill import Filler, Filling, Placement, Shortfall
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.strategies.constructive import Constructive, LayoutSchemes
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.strategies.local_search import Search
from seqplan.planner.strategies.polishing import (
    bound_ms,
    choose_sizes,
    exchange,
    place_on_ramps,
    polish,
)
from seqplan.planner.sync.times import NO_SYNC, SyncTimes, layouts_of
from seqplan.plans.plan import Considered
from seqplan.plans.scheme import Scheme, Strategy

TAILOR_GAIN = 0.01
"""A strategy is made for the batch where the relaxation promises at least this share."""

TAILOR_MOVES = 4
"""Swaps that the strategy made for the batch may accept."""

CONSTRUCTED_GAIN = 1e-3
"""Share by which a constructed strategy has to beat the best, so that ties keep a candidate."""

FEW = 16
"""Steps of so few sequences are tried on every homogeneous strategy."""

FIRST_FILL = 1.01
"""Candidates are ordered by a fill at this multiple of the least of their bounds."""


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

    1. Every candidate gets a cheap bound and one fill, and is visited by what that promises.
    2. The first is planned; each other is given one fill just below the best time so far and is
       planned if that succeeds, or skipped if its bound forbids it (``_best_candidate``).
    3. With ``tailor``, strategies made for the batch are tried: of each layout of the candidates
       from all schemes (``Constructive``), and of several layouts from the candidates' schemes
       (``_try_mixed_layouts``).
       For up to ``FEW`` sequences homogeneous strategies are tried as well (``_homogeneous``).
    4. Strategies with stages are tried again with the sizes of ramps (``_choose_sizes``).
    5. The best placement is polished and gets a close bound (``polish``). Without ``prove`` it has
       the cheap one, and no linear program is solved.

    The best has the least time with its ``sync``. If no candidate holds the longest
    sequence (or there is none), a strategy is constructed of whichever layout does. Raises
    ``Infeasible`` when none can. ``layouts``: those of ``models``, if they are made already.
    """
    search = Search(batch, models, gpus, sync or NO_SYNC)
    fleets = [Fleet.from_strategy(strategy, models) for strategy in candidates]
    holding = [fleet for fleet in fleets if fleet.max_sequence >= batch.longest]
    bounds = {fleet.strategy: cheap_bound_ms(fleet.classes, batch) for fleet in holding}
    times: dict[Strategy, float] = {}
    best = _best_candidate(search, None, holding, bounds, times)
    allowed = list(layouts or LayoutSchemes.list_from_models(models)) if tailor else []
    if best is not None and tailor:
        of_candidates = layouts_of(s for strategy in candidates for s, _ in strategy.counts)
        allowed = [layout for layout in allowed if layout.layout in of_candidates]
        best = _try_mixed_layouts(search, best, candidates, allowed, relaxing=prove)
    elif tailor:
        best = _construct_strategies(search, None, allowed)
    if best is not None and tailor and len(batch.lengths) <= FEW:
        best = _homogeneous(search, best, candidates)
    if best is None:
        raise Infeasible(_too_long(batch, fleets, models if tailor else {}))
    times[best.strategy] = best.objective_ms
    best = _choose_sizes(search, best, holding, bounds, times, allowed)
    if best.fleet.has_stages:
        proven = bound_ms(batch, best, prove=prove)
    else:
        best, proven = polish(batch, best, prove=prove)
    times[best.strategy] = best.objective_ms
    considered = tuple(
        list_considered(strategy, bounds.get(strategy, proven), times.get(strategy), sync)
        for strategy in dict.fromkeys([*bounds, *times])
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


def _homogeneous(search: Search, best: Placement, candidates: Sequence[Strategy]) -> Placement:
    """Try the strategies of static trainers, in the layouts of the candidates or in all.

    Few sequences may leave GPUs idle whatever runs, which no price of GPU-time reflects.
    """
    allowed = layouts_of(s for strategy in candidates for s, _ in strategy.counts)
    models = {
        scheme: model
        for scheme, model in search.models.items()
        if not allowed or (scheme.tp, scheme.pp) in allowed
    }
    strategies = homogeneous_strategies(models, search.gpus, search.batch.longest)
    fleets = [Fleet.from_strategy(strategy, models) for strategy in strategies]
    bounds = {fleet.strategy: cheap_bound_ms(fleet.classes, search.batch) for fleet in fleets}
    static = _best_candidate(search, None, fleets, bounds, {})
    if static is None:
        return best
    limit_ms = search.limit_ms(best, static.strategy) * (1 - CONSTRUCTED_GAIN)
    return static if static.objective_ms < limit_ms else best


def _choose_sizes(
    search: Search,
    best: Placement,
    fleets: Sequence[Fleet],
    bounds: Mapping[Strategy, float],
    times: dict[Strategy, float],
    layouts: Sequence[LayoutSchemes],
) -> Placement:
    """Place the batch on strategies with stages in the sizes of ramps; the best if none beats it.

    On that of the best, on the candidates, and on strategies constructed of ``layouts``.
    """
    batch, known = search.batch, best
    if best.fleet.has_stages:
        known = best = exchange(batch, best, effort=ROUGHLY)
        times[best.strategy] = best.objective_ms
        known = place_on_ramps(batch, best.fleet, best.objective_ms) or best
    staged = [f for f in fleets if f.has_stages and f.strategy != best.strategy]
    known = _best_candidate(search, known, staged, bounds, times, ramped=True) or known
    of_stages = [layout for layout in layouts if layout.layout[1] > 1]
    ramped = _construct_strategies(search, known, of_stages, ramped=True) or known
    extra_ms = search.sync.extra_ms(ramped.strategy, best.strategy)
    return choose_sizes(batch, best, None if ramped is best else ramped, extra_ms)


def _best_candidate(
    search: Search,
    best: Placement | None,
    fleets: Sequence[Fleet],
    bounds: Mapping[Strategy, float],
    times: dict[Strategy, float],
    *,
    ramped: bool = False,
) -> Placement | None:
    """Place the batch on the candidate that is better than ``best``, if one is.

    ``times`` gains those not pruned (ms).
    """
    for filler, first in _by_first_fill(search, fleets, bounds, ramped):
        strategy = filler.fleet.strategy
        bound = bounds[strategy]
        limit = inf if best is None else search.limit_ms(best, strategy)
        if bound >= limit:
            continue
        known = first if best is None else first or probe(filler, bound, limit)
        if best is not None and known is None:
            continue
        filling = dispatch(filler, bound, known=known)
        if filling is not None:
            times[strategy] = min(filling.objective_ms, times.get(strategy, inf))
            if best is None or filling.objective_ms < limit:
                best = Placement(filler.fleet, filling)
    return best


def _by_first_fill(
    search: Search, fleets: Sequence[Fleet], bounds: Mapping[Strategy, float], ramped: bool
) -> list[tuple[Filler, Filling | None]]:
    """Order candidates by promise, by one fill each at a common time.

    First those that succeed, by their time with the sync; then by how much was missing.
    """
    of_strategy_ms = {f.strategy: search.sync.of_strategy_ms(f.strategy) for f in fleets}
    targets = (bounds[strategy] * FIRST_FILL + ms for strategy, ms in of_strategy_ms.items())
    target = min(targets, default=inf)
    attempts: list[tuple[bool, float, Filler, Filling | None]] = []
    for fleet in fleets:
        sync_ms = of_strategy_ms[fleet.strategy]
        filler = Filler(fleet, search.batch, ramped=ramped)
        filling = filler.fill(max(target - sync_ms, bounds[fleet.strategy]))
        if isinstance(filling, Shortfall):
            attempts.append((True, filling.gpu_ms, filler, None))
        else:
            attempts.append((False, filling.objective_ms + sync_ms, filler, filling))
    attempts.sort(key=lambda attempt: attempt[:2])
    return [(filler, filling) for _, _, filler, filling in attempts]


def _try_mixed_layouts(
    search: Search,
    best: Placement,
    candidates: Sequence[Strategy],
    constructible: Sequence[LayoutSchemes],
    *,
    relaxing: bool,
) -> Placement:
    """Make a strategy for this batch from the candidates' schemes; the best if none beats it.

    One is constructed of each layout. With ``relaxing``, the best is then improved by swaps within
    each family of layouts that sync in the same time, if a linear program promises enough; not
    within a single layout without stages, where GPU-time alone decides.
    """
    schemes = sorted({scheme for strategy in candidates for scheme, _ in strategy.counts})
    layouts = layouts_of(schemes)
    best = _construct_strategies(search, best, constructible) or best
    if not relaxing:
        return best
    for family in search.sync.families(layouts):
        members = [scheme for scheme in schemes if (scheme.tp, scheme.pp) in family.layouts]
        bubbles = any(scheme.pp > 1 for scheme in members)
        if len(members) > 1 and (bubbles or len(layouts_of(members)) > 1):
            best = _make_strategy(search, best, members, family.sync_ms)
    return best


def _construct_strategies(
    search: Search,
    best: Placement | None,
    layouts: Sequence[LayoutSchemes],
    *,
    ramped: bool = False,
) -> Placement | None:
    """Construct a strategy of each layout; the best of them, if it beats ``best``."""
    of_layout = []
    for layout in layouts:
        if layout.holds(search.batch):
            sync_ms = search.sync.compute_exposed_ms([layout.layout])
            bound_ms = layout.bound_ms(search.batch, search.gpus) + sync_ms
            of_layout.append((bound_ms, sync_ms, layout))
    beaten = None
    for bound_ms, sync_ms, layout in sorted(of_layout, key=lambda entry: entry[:2]):
        limit = inf
        if best is not None:
            limit = best.objective_ms + search.sync.of_strategy_ms(best.strategy)
        if bound_ms >= limit:
            break
        constructive = Constructive(layout, search.batch, search.gpus, ramped=ramped)
        placement = constructive.place((limit - sync_ms) * (1 - CONSTRUCTED_GAIN))
        if placement is not None:
            best = beaten = placement
    return beaten


def _make_strategy(
    search: Search,
    best: Placement,
    schemes: Sequence[Scheme],
    sync_ms: float,
) -> Placement:
    """Make a strategy for this batch of ``schemes``, whose sync takes ``sync_ms``."""
    batch, models, gpus = search.batch, search.models, search.gpus
    classes = [PipelineClass.from_model(models[scheme], 1) for scheme in schemes]
    lower = single_bound_ms(classes, batch)
    # Computation must gain the sync's excess over that of the best.
    extra_sync_ms = sync_ms - search.sync.of_strategy_ms(best.strategy)
    objective = best.objective_ms - extra_sync_ms
    if objective <= lower * (1 + TAILOR_GAIN):
        return best
    if solve_scale(classes, batch, objective, gpus, 1 - TAILOR_GAIN) is None:
        return best
    return search.improve(best, schemes, lower, moves=TAILOR_MOVES)


def _too_long(batch: Batch, fleets: Sequence[Fleet], models: Models) -> str:
    longest = batch.longest
    sample = batch.ids[batch.lengths.index(longest)]
    limits = [fleet.max_sequence for fleet in fleets]
    limits += [model.max_sequence for model in models.values()]
    holder = "scheme of the profile" if models else "candidate"
    fix = "truncate it or use more GPUs" if models else "propose again with lengths that reach it"
    return (
        f"step {batch.step}: sequence {sample} has {longest} tokens, but no {holder} holds more "
        f"than {max(limits, default=0)}; {fix}"
    )
