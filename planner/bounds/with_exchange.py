"""A bound over all strategies that counts what parameters and gradients take to be exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.exchange import Exchange
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.plans.scheme import Scheme
from seqplan.profiler.scheme_model import SchemeModel


class Families:
    """The relaxation over all strategies of equal replicas: one for each ⟨tp, pp⟩."""

    def __init__(self, models: Models, gpus: int) -> None:
        self.gpus = gpus
        by_split: dict[tuple[int, int], dict[Scheme, SchemeModel]] = {}
        for scheme, model in models.items():
            by_split.setdefault((scheme.tp, scheme.pp), {})[scheme] = model
        self.relaxations = [AllStrategies(family, gpus) for _, family in sorted(by_split.items())]


def exchange_bound_ms(
    families: Families, batch: Batch, bound_ms: float, exchange: Exchange
) -> float:
    """Prove a lower bound (ms) on step and exchange together, over all strategies.

    ``bound_ms`` bounds the step of any strategy. Strategies of different replicas add the dearer
    exchange to it; those of equal replicas add the cheaper one to the bound of their own family.
    """
    same, different = exchange.exposed_ms(False), exchange.exposed_ms(True)
    if not exchange.decides:
        return bound_ms + different
    least = bound_ms + different
    for family in families.relaxations:
        low = max(single_bound_ms(family.classes, batch), _area_ms(family.classes, batch, families))
        if low + same < least:
            low = max(low, all_strategies_bound_ms(family, batch, least - same))
            least = min(least, max(low, bound_ms) + same)
    return least


def _area_ms(classes: Sequence[PipelineClass], batch: Batch, families: Families) -> float:
    """Spread all work, each length on its cheapest class in GPU-time, over all GPUs (ms)."""
    costs = np.stack(
        [
            np.where(
                batch.distinct <= pipeline_class.capacity,
                pipeline_class.gpus * pipeline_class.work_with_overhead_ms(batch.distinct),
                np.inf,
            )
            for pipeline_class in classes
        ]
    )
    area = float(costs.min(axis=0) @ batch.multiplicity)
    return area / families.gpus * (1 - ROUNDING)
