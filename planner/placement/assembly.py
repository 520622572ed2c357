"""Plans from pipelines and micro-batches: what steps, rounds and compared systems share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.micro_batch_order import order_micro_batches
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import Considered, MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme


def plan_of(
    batch: Batch,
    planner: Provenance,
    world_size: int,
    pipelines: Sequence[PlannedPipeline],
    predicted_ms: float,
    bound_ms: float,
    selection: tuple[Considered, ...],
    sync_ms: float | None = None,
    layout_bound_ms: float | None = None,
) -> Plan:
    """Make the plan of these pipelines; ranks in none of them are idle.

    ``bound_ms`` is raised to ``layout_bound_ms``, which holds for these pipelines too.
    """
    layout_bound = None if layout_bound_ms is None else min(floor_us(layout_bound_ms), predicted_ms)
    bound_ms = max(bound_ms, layout_bound or 0.0)
    used = {rank for pipeline in pipelines for rank in pipeline.ranks}
    return Plan(
        step=batch.step,
        provenance=planner,
        world_size=world_size,
        ids=batch.ids,
        lengths=batch.lengths,
        tokens=batch.tokens,
        loss_tokens=loss_tokens(batch),
        pipelines=tuple(pipelines),
        idle_ranks=tuple(rank for rank in range(world_size) if rank not in used),
        groups=process_groups(pipelines),
        predicted_ms=predicted_ms,
        lower_bound_ms=bound_ms,
        gap=gap(predicted_ms, bound_ms),
        selection=selection,
        sync_ms=sync_ms,
        layout_lower_bound_ms=layout_bound,
    )


def plan_pipeline(
    scheme: Scheme,
    pipeline_class: PipelineClass,
    ranks: tuple[int, ...],
    micro_batches: Sequence[Sequence[int]],
    batch: Batch,
    forward_fraction: float,
    round_: int | None = None,
) -> PlannedPipeline:
    """Make one pipeline at the model's costs; its predicted time is form S of the stated costs."""
    planned_batches = []
    for positions in micro_batches:
        lengths = [batch.lengths[i] for i in positions]
        cost = (
            math.fsum(length * (pipeline_class.a * length + pipeline_class.b) for length in lengths)
            + pipeline_class.c
        )
        planned_batches.append(
            MicroBatch(
                tuple(positions), sum(lengths), scheme.pad_micro_batch(lengths), round(cost, 3)
            )
        )
    costs = [micro.cost_ms for micro in planned_batches]
    order = order_micro_batches(costs, scheme.pp, forward_fraction)
    predicted = math.fsum(costs) + (scheme.pp - 1) * max(costs) if costs else 0.0
    return PlannedPipeline(
        scheme, ranks, tuple(planned_batches[j] for j in order), round(predicted, 3), round_
    )


def ranks_of_stages(scheme: Scheme, first: int, of_stage: int) -> tuple[int, ...]:
    """List a group's ranks from the ``first`` of each stage on; a stage has ``of_stage`` ranks."""
    return tuple(
        stage * of_stage + rank
        for stage in range(scheme.pp)
        for rank in range(first, first + scheme.stage_gpus)
    )


def loss_tokens(batch: Batch) -> int:
    """Count the labels in the step's loss: the caller's count, or tokens less one per sequence."""
    return batch.tokens - len(batch.lengths) if batch.loss_tokens is None else batch.loss_tokens


def floor_us(time_ms: float) -> float:
    """Round down to whole microseconds, so that a bound stays a bound."""
    return math.floor(time_ms * 1000) / 1000


def gap(predicted_ms: float, bound_ms: float) -> float:
    """Return predicted / bound − 1, to six decimals; 0 if the bound is 0."""
    return round(predicted_ms / bound_ms - 1, 6) if bound_ms > 0 else 0.0
