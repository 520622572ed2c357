"""Homogeneous strategies: what a static trainer would run, planned with our own machinery."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.step_bounds import area_bound_ms, single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.plans.scheme import Strategy


def homogeneous_strategies(models: Models, gpus: int, longest: int) -> list[Strategy]:
    """Make, for each scheme that holds ``longest`` tokens, as many pipelines as fit ``gpus``."""
    return [
        Strategy.of({scheme: gpus // scheme.gpus})
        for scheme, model in sorted(models.items())
        if model.max_sequence >= longest
    ]


def strategy_ms(strategy: Strategy, batch: Batch, models: Models) -> float | None:
    """Return the time (form S, ms) of our dispatch and packing; None if a sequence is too long."""
    fleet = Fleet.of(strategy, models)
    if fleet.max_sequence < batch.longest:
        return None
    lower = max(single_bound_ms(fleet.classes, batch), area_bound_ms(fleet.classes, batch))
    filling = dispatch(Filler(fleet, batch), lower)
    return None if filling is None else filling.objective_ms


def best_homogeneous(
    batches: Sequence[Batch], models: Models, gpus: int
) -> tuple[Strategy, list[float]] | None:
    """Find the static strategy with the least mean time over ``batches``, and its times (ms)."""
    longest = max(batch.longest for batch in batches)
    best: tuple[Strategy, list[float]] | None = None
    for strategy in homogeneous_strategies(models, gpus, longest):
        times = [strategy_ms(strategy, batch, models) for batch in batches]
        if any(time is None for time in times):
            continue
        known = [time for time in times if time is not None]
        if best is None or sum(known) < sum(best[1]):
            best = (strategy, known)
    return best
