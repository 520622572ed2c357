"""Ranks that run their micro-batches each for itself and meet at the end of the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify, cheap_bound_ms
from seqplan.planner.placement.dispatch import dispatch, level
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Bin, Fleet, PipelineClass
from seqplan.plans.scheme import Scheme, Strategy

GOOD = 1e-2
"""Above this gap a linear program is asked for a closer bound."""


def plan_free(
    micro_batch: PipelineClass, batch: Batch, ranks: int
) -> tuple[tuple[tuple[Bin, ...], ...], float]:
    """Minimise the slowest rank's Σ of micro-batches: those of each rank, and a lower bound (ms).

    The slowest rank is the one that a step waits for; the others are evened below it.
    """
    strategy = Strategy.of({Scheme(): ranks})
    fleet = Fleet(strategy, (replace(micro_batch, count=ranks),))
    filler = Filler(fleet, batch)
    bound = cheap_bound_ms(fleet.classes, batch)
    filling = dispatch(filler, bound)
    if filling is None:
        raise AssertionError("every sequence fits a micro-batch")
    if filling.objective_ms > bound * (1 + GOOD):
        bound = max(bound, certify(fleet, batch, filling.objective_ms))
    filling = level(filler, filling, float(np.sum(filling.pipeline_ms)) / ranks)
    (placement,) = filling.bins
    return placement, min(bound, filling.objective_ms)
