"""The terms of a plan's bound: cheap bounds first, then prices from the relaxation."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.bounds.step_bounds import (
    area_bound_ms,
    bound_by_relaxation_ms,
    single_bound_ms,
)
from seqplan.planner.placement.fleet import Fleet, PipelineClass

CERTIFY_GAP = 2e-3
"""The gap at which the proof is sought first; above it the prices are refined once."""


def cheap_bound_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Return the larger of the bounds that take microseconds: one sequence alone, and area."""
    return max(single_bound_ms(classes, batch), area_bound_ms(classes, batch))


def certify(fleet: Fleet, batch: Batch, objective_ms: float) -> float:
    """Prove a lower bound (ms) on the step's time with this fleet, by priced relaxation."""
    low = single_bound_ms(fleet.classes, batch)
    time = objective_ms / (1 + CERTIFY_GAP)
    if low >= time:
        return min(low, objective_ms)
    for _ in range(2):
        relaxed = relax(fleet.classes, batch, time)
        if relaxed is None:
            return low  # not solved: that proves nothing
        low = bound_by_relaxation_ms(fleet.classes, batch, relaxed, low, objective_ms)
        if low >= objective_ms / (1 + 2 * CERTIFY_GAP):
            break
        time = low * (1 + CERTIFY_GAP)
    return low
