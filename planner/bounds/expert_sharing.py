"""Bounds where a block of experts spreads a part of its pipelines' work over its ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import Demand, bound_demand_ms, gpu_time_bound_ms
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.scheme import Scheme


def expert_bound_ms(
    models: Collection[SchemeModel], expert_parallel: int, batch: Batch, gpus: int
) -> float:
    """Bound every plan of these schemes (ms), however experts are split.

    Infinite if no scheme holds a sequence. Without expert parallelism it is ``gpu_time_bound_ms``.
    Schemes with stages count if these may be whole blocks, as plans have no others.
    All ranks together do the work at its full cost. A single pipeline can end earlier, as others of
    its block take a part of it: one at a time it counts at the cost of ``relax_sharing``. The ranks
    of a block run equally many micro-steps, each of which takes it the mean of their work or more.
    """
    planned = [model for model in models if permits_scheme(expert_parallel, model.scheme)]
    full = tuple(PipelineClass.from_model(model, 1) for model in planned)
    if expert_parallel == 1:
        return gpu_time_bound_ms(full, batch, gpus)
    relaxed = tuple(
        PipelineClass.from_model(relax_sharing(model, expert_parallel), 1) for model in planned
    )
    all_work = Demand.from_batch(full, batch, gpus)
    return bound_demand_ms(
        replace(
            Demand.from_batch(relaxed, batch, gpus),
            gpu_ms=all_work.gpu_ms,
            full_ms=all_work.work_ms,
            place_gpus=expert_parallel,
        )
    )


def permits_scheme(expert_parallel: int, scheme: Scheme) -> bool:
    """Whether plans may have a scheme: it has one stage, or stages of whole blocks."""
    return scheme.pp == 1 or scheme.stage_gpus % expert_parallel == 0


def relax_sharing(model: SchemeModel, expert_parallel: int) -> SchemeModel:
    """Return a model whose costs bound a pipeline's time from below, whatever its block does.

    Shared work takes a block the mean of its ranks, so at least the pipeline's part of it.
    """
    return reduce_sharing(model, min(model.scheme.stage_gpus / expert_parallel, 1.0))


def reduce_sharing(model: SchemeModel, part: float) -> SchemeModel:
    """Return a model of whose shared work only a part counts."""
    return _leave_out(model, lambda latency: latency.b_shared * (1 - part))


def reduce_equal_sharing(model: SchemeModel, part: float) -> SchemeModel:
    """Return a model of whose shared work a part counts, if equal in all modes."""
    equal = min(latency.b_shared for latency in (model.latency, *(m.latency for m in model.modes)))
    return _leave_out(model, lambda _: equal * (1 - part))


def _leave_out(model: SchemeModel, left_out: Callable[[Latency], float]) -> SchemeModel:
    def reduce(latency: Latency) -> Latency:
        return Latency(latency.a, latency.b - left_out(latency), latency.c)

    return replace(
        model,
        latency=reduce(model.latency),
        modes=tuple(replace(mode, latency=reduce(mode.latency)) for mode in model.modes),
    )
