"""Bounds where a block of experts spreads a part of its pipelines' work over its ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import Demand, bound_demand_ms, gpu_time_bound_ms
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.fleet import PipelineClass


def expert_bound_ms(
    models: Collection[SchemeModel], expert_parallel: int, batch: Batch, gpus: int
) -> float:
    """Bound every plan of these schemes (ms), however experts are split.

    Infinite if no scheme holds a sequence. Without expert parallelism it is ``gpu_time_bound_ms``.
    All ranks together do the work at its full cost. A single pipeline can end earlier, as others of
    its block take a part of it: one at a time it counts at the cost of ``relax_sharing``.
    """
    full = tuple(PipelineClass.from_model(model, 1) for model in models)
    if expert_parallel == 1:
        return gpu_time_bound_ms(full, batch, gpus)
    relaxed = tuple(
        PipelineClass.from_model(relax_sharing(model, expert_parallel), 1) for model in models
    )
    all_work = Demand.from_batch(full, batch, gpus).gpu_ms
    demand = replace(Demand.from_batch(relaxed, batch, gpus), gpu_ms=all_work)
    return max(bound_demand_ms(demand), _bound_one_micro_step_ms(full, batch, gpus))


def _bound_one_micro_step_ms(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> float:
    """Bound by the work of the mean rank and the overhead of one micro-batch (ms).

    Some component has at least the mean work a rank, and runs at least one micro-step.
    """
    lengths = batch.distinct
    work_ms = [
        np.where(k.padded(lengths) <= k.capacity, k.gpus * k.work_ms(lengths), np.inf)
        for k in classes
    ]
    mean_ms = float(np.min(work_ms, axis=0) @ batch.multiplicity) / gpus
    return (mean_ms + min(k.least_c for k in classes)) * (1 - ROUNDING)


def relax_sharing(model: SchemeModel, expert_parallel: int) -> SchemeModel:
    """Return a model whose costs bound a pipeline's time from below, whatever its block does.

    Shared work takes a block the mean of its ranks, so at least the pipeline's part of it.
    """
    return reduce_sharing(model, min(model.scheme.stage_gpus / expert_parallel, 1.0))


def reduce_sharing(model: SchemeModel, part: float) -> SchemeModel:
    """Return a model of whose shared work only a part counts."""

    def reduce(latency: Latency) -> Latency:
        return Latency(latency.a, latency.b - latency.b_shared * (1 - part), latency.c)

    return replace(
        model,
        latency=reduce(model.latency),
        modes=tuple(replace(mode, latency=reduce(mode.latency)) for mode in model.modes),
    )
