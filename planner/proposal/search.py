"""A strategy searched for one batch among all schemes of the profile."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, fitting_time
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import TOLERANCE, dispatch
from seqplan.planner.placement.fill import Filler, Filling, Placement
from seqplan.planner.placement.fleet import Fleet, Models, PipelineClass
from seqplan.planner.strategies.local_search import SwapSearch
from seqplan.planner.strategies.rounding import round_strategies
from seqplan.plans.scheme import Scheme, Strategy

SEARCH_MOVES = 12
"""Accepted swaps of the local search per sampled batch."""


def search(
    all_strategies: AllStrategies,
    batch: Batch,
    guess_ms: float | None = None,
    known: Iterable[Strategy] = (),
) -> list[Strategy]:
    """Find the best strategy for one batch; it is first, and the start it came from follows.

    ``guess_ms``: about the time at which the relaxation fits; ``known``: strategies found before,
    tried as further starts by a single fill each.
    """
    models, gpus, schemes = all_strategies.models, all_strategies.gpus, all_strategies.schemes
    lower = single_bound_ms(all_strategies.classes, batch)
    relaxed, fitting_ms = fitting_time(all_strategies, batch, guess_ms)
    pipelines = relaxed.pipelines / max(relaxed.scale, 1e-9)
    starts = round_strategies(schemes, pipelines, models, gpus, batch.longest)
    best: Placement | None = None
    for strategy in dict.fromkeys([*starts, *known]):
        fleet = Fleet.from_strategy(strategy, models)
        if fleet.max_sequence < batch.longest:
            continue
        filler = Filler(fleet, batch)
        limit = float("inf") if best is None else best.objective_ms * (1 - TOLERANCE)
        filling = dispatch(filler, max(lower, fitting_ms)) if best is None else filler.fill(limit)
        if isinstance(filling, Filling) and filling.objective_ms <= limit:
            best = Placement(fleet, filling)
    if best is None:
        return []
    active = [s for s, n in zip(schemes, pipelines, strict=True) if n > 1e-6]
    active += [s for s in _useful(batch, models) if s not in active]
    improved = SwapSearch(batch, models, gpus).improve(
        best, active, max(lower, fitting_ms * (1 - TOLERANCE)), moves=SEARCH_MOVES
    )
    return list(dict.fromkeys([improved.strategy, best.strategy]))


def _useful(batch: Batch, models: Models) -> list[Scheme]:
    """Return the schemes that are the cheapest in GPU-time for some length of the batch."""
    lengths = batch.distinct
    rows, schemes = [], sorted(models)
    for scheme in schemes:
        model = models[scheme]
        cost = scheme.gpus * (PipelineClass.from_model(model, 1).work_with_overhead_ms(lengths))
        rows.append(np.where(lengths <= model.max_sequence, cost, np.inf))
    cheapest = np.argmin(np.stack(rows), axis=0)
    return [schemes[k] for k in np.unique(cheapest)]
