"""A plan's time at other costs than it was made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.planner.placement.fleet import Models
from seqplan.planner.simulation.one_f_one_b import ForwardFraction, simulate_micro_batches_ms
from seqplan.planner.simulation.timeline import simulate_pipelines_ms
from seqplan.plans.plan import PlannedPipeline


def recost_pipelines(
    pipelines: Sequence[PlannedPipeline],
    lengths: Sequence[int],
    models: Models,
    forward_fraction: ForwardFraction,
) -> tuple[PlannedPipeline, ...]:
    """Return the pipelines at the costs of ``models``; groups, order and modes stay.

    ``lengths``: tokens of the batch's sequences. ``KeyError`` for a scheme that ``models`` lacks.
    """
    return tuple(_recost(pipeline, lengths, models, forward_fraction) for pipeline in pipelines)


def simulate_at_costs_ms(
    pipelines: Sequence[PlannedPipeline],
    lengths: Sequence[int],
    models: Models,
    forward_fraction: ForwardFraction,
    expert_parallel: int = 1,
) -> float:
    """Simulate pipelines at the costs of ``models`` (ms)."""
    recosted = recost_pipelines(pipelines, lengths, models, forward_fraction)
    return simulate_pipelines_ms(recosted, forward_fraction, expert_parallel)


def _recost(
    pipeline: PlannedPipeline,
    lengths: Sequence[int],
    models: Models,
    forward_fraction: ForwardFraction,
) -> PlannedPipeline:
    model = models[pipeline.scheme]
    micro_batches = []
    for micro in pipeline.micro_batches:
        latency = (model.find_mode(micro.recompute) or model).latency
        cost = latency.micro_batch_ms([lengths[place] for place in micro.sequences])
        shared = round(latency.b_shared * micro.tokens, 3) if micro.shared_ms else 0.0
        micro_batches.append(replace(micro, cost_ms=round(cost, 3), shared_ms=shared))
    predicted = simulate_micro_batches_ms(micro_batches, pipeline.scheme.pp, forward_fraction)
    return replace(pipeline, micro_batches=tuple(micro_batches), predicted_ms=round(predicted, 3))
