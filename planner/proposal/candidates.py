"""Our proposal: candidate strategies for a data set, from sampled batches.

Strategies are judged by real placement of whole batches, and against a lower bound over all
strategies. What parameters and gradients take to be synchronized counts in a strategy's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.proposal.batch_times import BatchTimes
from seqplan.planner.proposal.kept_strategies import (
    Proposed,
    TimedStrategy,
    describe_kept,
    keep_best,
    refine,
)
from seqplan.planner.proposal.layout_times import (
    layout_times,
    regrouping_times,
    strategies_by_layout,
    strategy_layouts,
)
from seqplan.planner.proposal.layouts import (
    LayoutChoice,
    choose_layout,
    explain_choice,
)
from seqplan.planner.proposal.neighbors import find_neighbors
from seqplan.planner.proposal.scenarios import Scenarios
from seqplan.planner.proposal.search import search
from seqplan.planner.strategies.homogeneous import promising_homogeneous
from seqplan.planner.strategies.regrouping import RegroupLayout, make_regroup_layouts
from seqplan.planner.sync.times import NO_SYNC, Layout, SyncTimes, layouts_of
from seqplan.plans.scheme import Scheme, Strategy

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""

FRUITLESS = 3
"""Searches of layouts that found nothing better, after which they are searched no more."""


@dataclass(frozen=True)
class Effort:
    """Numbers of batches evaluated, of those at most searched, and of strategies kept."""

    judged: int = 64
    searched: int = 48
    kept: int = 10

    @classmethod
    def choose(cls, gpus: int, *, several_spaces: bool, modes: bool) -> Effort:
        """Choose fewer batches for large clusters: each is larger, and so less unlike the others.

        Fewer, too, if each is searched and bounded for several families of layouts, and fewest
        with recomputation modes, with which more of these hold the longest sequence: plans are as
        fast with 12 batches as with 16 (``./run bench memory``).
        """
        if several_spaces and modes:
            return cls(judged=12 if gpus <= 512 else 6, searched=9)
        if several_spaces:
            return cls(judged=16 if gpus <= 512 else 8, searched=12)
        if gpus <= 128:
            return cls()
        if gpus <= 512:
            return cls(judged=32, searched=24)
        return cls(judged=16, searched=12)


@dataclass(frozen=True)
class CandidatePool:
    """Kept candidates and their worth: means over the evaluated batches, in ms.

    All with the sync that the proposal was made for.
    ``expected_ms``: best kept strategy per batch; ``pool_ms``: best of all strategies found;
    ``lower_bound_ms``: proven, over all strategies of these schemes and GPUs; ``layouts``: results
    of each layout, and of several together; None if strategies are chosen by forward and backward.
    """

    candidates: tuple[Proposed, ...]
    expected_ms: float
    pool_ms: float
    lower_bound_ms: float
    judged: int
    layouts: LayoutChoice | None = None


def propose(
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    effort: Effort,
    sync: SyncTimes | None = None,
    derived: Collection[Scheme] = (),
    progress: Progress | None = None,
    *,
    regroup: bool = True,
) -> CandidatePool:
    """Propose strategies for data like ``batches``, of which ``effort.judged`` are evaluated.

    1. Batch by batch, the strategies found so far are tried. Unless all strategies are proven to
       take about as long as the best of them, and for at most ``effort.searched`` batches, some are
       searched for the batch (``search``: the relaxation's fractional pipeline counts rounded, and
       swaps evaluated by placement) and join those found. With a ``sync``, each layout is
       searched apart, and so are the layouts together that sync in the same time; those that
       a bound proves slower than a known one are left out.
    2. When none found holds ``max_len`` tokens, one is searched for a batch that has such a
       sequence.
    3. All strategies are timed on all batches, and neighbors of the best join them.
    4. The ``effort.kept`` are kept that together leave the least mean time of the best per batch
       (``conclude``): with a ``sync`` of one layout, unless several are better by more than
       ``ONE_LAYOUT`` (``choose_layout``).

    ``derived``: the schemes whose costs nobody has measured. ``regroup``: groups may change
    within a step, and a layout's worth includes that. At least one kept candidate holds ``max_len``
    tokens. Raises ``ValueError`` when no scheme does.
    """
    report = progress or (lambda stage, done, total: None)
    families = Families(models, gpus, sync or NO_SYNC)
    judged = [BatchTimes(batch, families, sync or NO_SYNC) for batch in batches[: effort.judged]]
    strategies, searched = _search_strategies(judged, families, max_len, effort, sync, report)
    scenarios = None
    may_regroup: list[RegroupLayout] = []
    if sync is not None:
        drawn = [batch_times.batch for batch_times in judged]
        scenarios = Scenarios(
            models,
            max_len,
            lambda scheme_models: _mean_bound_ms(scheme_models, drawn, gpus),
            lambda layout: sync.compute_exposed_ms([layout]),
            derived,
        )
        if regroup:
            may_regroup = make_regroup_layouts(models, sync)
            strategies += _of_layouts(may_regroup, strategies, models, gpus, max_len)
    _try_all(strategies, judged, report)
    strategies += find_neighbors(strategies, judged, gpus)
    report("comparing layouts", 0, 1)
    pool = conclude(
        strategies,
        judged,
        models,
        max_len,
        effort.kept,
        sync=sync,
        scenarios=scenarios,
        may_regroup=may_regroup,
        searched=searched,
    )
    report("comparing layouts", 1, 1)
    return pool


def evaluate_strategies(
    strategies: Sequence[Strategy],
    batches: Sequence[Batch],
    models: Models,
    gpus: int,
    max_len: int,
    effort: Effort,
    progress: Progress | None = None,
) -> CandidatePool:
    """Evaluate given strategies like found ones, and keep the few that serve best together."""
    report = progress or (lambda stage, done, total: None)
    families = Families(models, gpus, NO_SYNC)
    judged = [BatchTimes(batch, families, NO_SYNC) for batch in batches[: effort.judged]]
    _try_all(strategies, judged, report)
    return conclude(strategies, judged, models, max_len, effort.kept)


def _search_strategies(
    judged: Sequence[BatchTimes],
    families: Families,
    max_len: int,
    effort: Effort,
    sync: SyncTimes | None,
    report: Progress,
) -> tuple[list[Strategy], frozenset[Layout]]:
    """Search strategies on the batches; one of them holds ``max_len`` tokens.

    Also returns the layouts that were searched on half of the batches or more.
    """
    models, gpus = families.models, families.whole.gpus
    strategies: list[Strategy] = []
    spaces = families.members
    if sync is not None:
        spaces = families.spaces
        batches = [batch_times.batch for batch_times in judged]
        strategies = promising_homogeneous(batches, models, gpus, max_len, sync)
    searches = 0
    fruitless = dict.fromkeys(spaces, 0)
    of_layouts: Counter[frozenset[Layout]] = Counter()
    for done, batch_times in enumerate(judged):
        report("searching strategies", done, len(judged))
        batch = batch_times.batch
        for strategy in strategies:
            batch_times.try_strategy(strategy)
        searched = False
        for space in sorted(
            spaces, key=lambda s: (len(layouts_of(s.relaxation.models)), s.quick_bound_ms(batch))
        ):
            idle = searches >= effort.searched or fruitless[space] >= FRUITLESS
            if idle or _reach(space.relaxation.models) < batch.longest or batch_times.close(space):
                continue
            searched = True
            of_layouts[layouts_of(space.relaxation.models)] += 1
            before_ms = batch_times.best_ms
            known = batch_times.best_known(space.relaxation)
            guess_ms = batch_times.guess_ms(space)
            for strategy in search(space.relaxation, batch, guess_ms, known):
                batch_times.try_strategy(strategy)
                if strategy not in strategies:
                    strategies.append(strategy)
            if sync is not None and batch_times.best_ms == before_ms:
                fruitless[space] += 1
        searches += searched
    if not any(_reach_of(strategy, models) >= max_len for strategy in strategies):
        longest = Batch.from_lengths([max_len, *judged[0].batch.lengths])
        strategies += [s for s in search(families.whole, longest)[:1] if s not in strategies]
    half = len(judged) / 2
    alone = [
        layouts for layouts, times in of_layouts.items() if len(layouts) == 1 and times >= half
    ]
    return strategies, frozenset().union(*alone)


def conclude(
    strategies: Sequence[Strategy],
    judged: Sequence[BatchTimes],
    models: Models,
    max_len: int,
    most_kept: int,
    sync: SyncTimes | None = None,
    scenarios: Scenarios | None = None,
    may_regroup: Sequence[RegroupLayout] = (),
    searched: Collection[Layout] = (),
) -> CandidatePool:
    """Keep the strategies that serve best together; all are timed on all batches.

    At most ``most_kept`` of them. With an ``sync`` and ``scenarios``, candidates are of one
    layout, unless several layouts together are better (``choose_layout``), where groups of
    ``may_regroup`` count with their times by regrouping; ``searched``: as of ``layout_times``.
    """
    reaches = [_reach_of(strategy, models) for strategy in strategies]
    holds = [reach >= max_len for reach in reaches]
    if sync is not None:
        _refine_layouts(strategies, holds, judged)
    times = np.array([[one.time_ms(strategy) for one in judged] for strategy in strategies])
    timed = [TimedStrategy(*entry) for entry in zip(strategies, reaches, times, strict=True)]
    regrouped = regrouping_times(may_regroup, judged, strategies, times)
    layouts, layout, static = None, None, None
    if sync is not None and scenarios is not None:
        holding = {entry.layout: entry.max_sequence >= max_len for entry in may_regroup}
        of_layouts = layout_times(times, strategies, holds, regrouped, holding, sync, searched)
        layout = choose_layout(of_layouts, scenarios)
        layouts = explain_choice(layout, of_layouts, scenarios, sync)
        static = None if of_layouts.static is None else of_layouts.static[0]
    usable = [t for t in timed if layout is None or strategy_layouts(t.strategy) == {layout}]
    kept = keep_best(usable, max_len, most_kept)
    if len(kept) < most_kept:  # so that no step is slower than the best static strategy
        kept += [entry for entry in usable if entry.strategy == static and entry not in kept]
    kept = [refine(entry, judged) for entry in kept]
    best_kept = np.min([entry.times_ms for entry in kept], axis=0)
    for entry_layout, reached in regrouped.items():
        if layout in (None, entry_layout):
            best_kept = np.minimum(best_kept, reached)
    return CandidatePool(
        candidates=describe_kept(kept),
        expected_ms=float(best_kept.mean()),
        pool_ms=float(times.min(axis=0).mean()),
        lower_bound_ms=_bound_judged_ms(judged, may_regroup),
        judged=len(judged),
        layouts=layouts,
    )


def _refine_layouts(
    strategies: Sequence[Strategy], holds: Sequence[bool], judged: Sequence[BatchTimes]
) -> None:
    """Find exact times of the best strategy of each layout, and the best static one.

    Of those that hold the longest sequence.
    """
    holding = [i for i, holds_longest in enumerate(holds) if holds_longest]
    static = [i for i in holding if strategies[i].homogeneous]
    of_layouts = [static, *strategies_by_layout(strategies).values()]
    for members in of_layouts:
        of_layout = [strategies[i] for i in members if holds[i]]
        if of_layout:
            best = min(of_layout, key=lambda each: sum(one.time_ms(each) for one in judged))
            for one in judged:
                one.refine(best)


def _try_all(
    strategies: Sequence[Strategy], judged: Sequence[BatchTimes], report: Progress
) -> None:
    """Time every strategy on every batch."""
    order = list(strategies)
    for done, batch_times in enumerate(judged):
        report("evaluating strategies", done, len(judged))
        for strategy in order:
            batch_times.try_strategy(strategy)
        order.sort(key=batch_times.time_ms)  # the next begins with what served this one
    report("evaluating strategies", len(judged), len(judged))


def _bound_judged_ms(judged: Sequence[BatchTimes], may_regroup: Sequence[RegroupLayout]) -> float:
    """Average the bounds of the batches, also over groups that change (ms)."""
    bounds = np.array([batch_times.whole_bound_ms for batch_times in judged])
    for entry in may_regroup:
        bounds = np.minimum(bounds, [entry.bound_ms(b.batch, b.gpus) for b in judged])
    return float(bounds.mean())


def _of_layouts(
    layouts: Sequence[RegroupLayout],
    strategies: Sequence[Strategy],
    models: Models,
    gpus: int,
    max_len: int,
) -> list[Strategy]:
    """Make a strategy that holds ``max_len`` tokens of each layout that lacks one but could."""
    more = []
    for entry in layouts:
        of_layout = [s for s in strategies if strategy_layouts(s) == {entry.layout}]
        holding = [s for s in entry.schemes if models[s].max_sequence >= max_len]
        if holding and not any(_reach_of(s, models) >= max_len for s in of_layout):
            least = min(holding, key=lambda scheme: (scheme.gpus, scheme))
            more.append(Strategy.from_counts({least: gpus // least.gpus}))
    return more


def _mean_bound_ms(models: Models, batches: Sequence[Batch], gpus: int) -> float:
    """Bound the mean forward and backward of the strategies of these schemes (ms)."""
    classes = [PipelineClass.from_model(model, 1) for model in models.values()]
    return float(np.mean([gpu_time_bound_ms(classes, batch, gpus) for batch in batches]))


def _reach(models: Models) -> int:
    return max(model.max_sequence for model in models.values())


def _reach_of(strategy: Strategy, models: Models) -> int:
    return Fleet.from_strategy(strategy, models).max_sequence
