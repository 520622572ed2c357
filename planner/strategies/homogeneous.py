"""Homogeneous strategies: those of a static trainer, planned with our machinery."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import area_bound_ms, single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, Models
from seqplan.planner.strategies.polishing import polish_stages
from seqplan.planner.sync.times import SyncTimes
from seqplan.plans.scheme import Strategy


def homogeneous_strategies(models: Models, gpus: int, longest: int) -> list[Strategy]:
    """Make, for each scheme that holds ``longest`` tokens, as many pipelines as fit ``gpus``."""
    return [
        Strategy.from_counts({scheme: gpus // scheme.gpus})
        for scheme, model in sorted(models.items())
        if model.max_sequence >= longest
    ]


PROMISING = 1.1
"""Homogeneous strategies whose bounds are within this of the least are worth to be timed."""


TIMED_WITHIN = 1.03
"""Homogeneous strategies whose estimates are within this of the least are timed in 1F1B."""


def promising_homogeneous(
    batches: Sequence[Batch], models: Models, gpus: int, longest: int, sync: SyncTimes
) -> list[Strategy]:
    """Make the homogeneous strategies that may be the fastest over ``batches``, in scheme order.

    Ranked by quick bounds with the sync: the one with the least mean is timed, and all are
    returned whose mean bound is not above its time; never fewer than within ``PROMISING``.
    """
    bounds = {}
    for strategy in homogeneous_strategies(models, gpus, longest):
        classes = Fleet.from_strategy(strategy, models).classes
        quick = [max(single_bound_ms(classes, b), area_bound_ms(classes, b)) for b in batches]
        bounds[strategy] = sum(quick) / len(quick) + sync.of_strategy_ms(strategy)
    if not bounds:
        return []
    first = min(bounds, key=lambda strategy: (bounds[strategy], strategy.counts))
    times = [estimate_strategy_ms(first, batch, models) or bounds[first] for batch in batches]
    limit = sum(times) / len(times) + sync.of_strategy_ms(first)
    limit = max(limit, bounds[first] * PROMISING)
    return [strategy for strategy, bound in bounds.items() if bound <= limit]


def estimate_strategy_ms(strategy: Strategy, batch: Batch, models: Models) -> float | None:
    """Estimate the time (ms) of our dispatch and packing; None if a sequence is too long."""
    placement = _place(strategy, batch, models)
    return None if placement is None else placement.objective_ms


def strategy_ms(strategy: Strategy, batch: Batch, models: Models) -> float | None:
    """Compute the time (ms) of our dispatch and packing; None if a sequence is too long."""
    placement = _place(strategy, batch, models)
    if placement is None:
        return None
    if placement.fleet.has_stages:
        placement = polish_stages(batch, placement)
    return placement.objective_ms


def _place(strategy: Strategy, batch: Batch, models: Models) -> Placement | None:
    fleet = Fleet.from_strategy(strategy, models)
    if fleet.max_sequence < batch.longest:
        return None
    lower = max(single_bound_ms(fleet.classes, batch), area_bound_ms(fleet.classes, batch))
    filling = dispatch(Filler(fleet, batch), lower)
    return None if filling is None else Placement(fleet, filling)


def best_homogeneous(
    batches: Sequence[Batch], models: Models, gpus: int, sync: SyncTimes, longest: int = 0
) -> tuple[Strategy, list[float]] | None:
    """Find the static strategy with the least mean iteration over ``batches``, optimizer apart.

    It holds ``longest`` tokens, at least the longest of ``batches``. Returned with its computation
    times (ms).
    """
    longest = max(longest, *(batch.longest for batch in batches))
    means = estimate_means_ms(
        promising_homogeneous(batches, models, gpus, longest, sync), batches, models, sync
    )
    best: tuple[float, Strategy, list[float]] | None = None
    for strategy, estimate in means.items():
        if estimate > min(means.values()) * TIMED_WITHIN:
            continue
        times = [strategy_ms(strategy, batch, models) for batch in batches]
        known = [time for time in times if time is not None]
        mean = sum(known) / len(known) + sync.of_strategy_ms(strategy)
        if best is None or mean < best[0]:
            best = (mean, strategy, known)
    return None if best is None else best[1:]


def estimate_means_ms(
    strategies: Sequence[Strategy], batches: Sequence[Batch], models: Models, sync: SyncTimes
) -> dict[Strategy, float]:
    """Estimate mean iterations (ms) over batches, of the strategies that hold all sequences."""
    means = {}
    for strategy in strategies:
        times = [estimate_strategy_ms(strategy, batch, models) for batch in batches]
        known = [time for time in times if time is not None]
        if len(known) == len(times):
            means[strategy] = sum(known) / len(known) + sync.of_strategy_ms(strategy)
    return means
