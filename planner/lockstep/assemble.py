"""From micro-steps of groups to the plan: a pipeline for each group, in their order."""

from __future__ import annotations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.micro_steps import MicroStep, MicroSteps
from seqplan.planner.placement.assembly import (
    floor_us,
    plan_of,
    plan_pipeline,
    ranks_of_stages,
)
from seqplan.planner.simulation.one_f_one_b import ForwardFraction, order_micro_batches
from seqplan.planner.simulation.timeline import simulate_pipelines_ms
from seqplan.plans.plan import Plan, PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule


def assemble_micro_steps(
    batch: Batch,
    micro_steps: MicroSteps,
    planner: Provenance,
    world_size: int,
    *,
    forward_fraction: ForwardFraction,
    sync_ms: float | None = None,
) -> Plan:
    """Make the plan of a step in micro-steps; ``sync_ms``: as in the plan."""
    pipelines = make_group_pipelines(batch, micro_steps, forward_fraction)
    predicted = schedule(pipelines).makespan_ms
    if micro_steps.stages > 1 and not isinstance(forward_fraction, float):
        # Forward's share of the time differs between modes, and form S may be too short.
        predicted = max(predicted, simulate_pipelines_ms(pipelines, forward_fraction))
    predicted = round(predicted, 3)
    return plan_of(
        batch,
        planner,
        world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=min(floor_us(micro_steps.lower_bound_ms), predicted),
        selection=(),
        sync_ms=sync_ms,
        layout_bound_ms=micro_steps.lower_bound_ms,
    )


def make_group_pipelines(
    batch: Batch, micro_steps: MicroSteps, forward_fraction: ForwardFraction
) -> list[PlannedPipeline]:
    """Make a pipeline of each group, micro-step after micro-step.

    Groups take consecutive ranks of each stage, the largest first; with stages, micro-steps rise to
    the longest and fall.
    """
    times = [micro_step.time_ms for micro_step in micro_steps.micro_steps]
    shares = [
        forward_fraction
        if isinstance(forward_fraction, float)
        else forward_fraction[_mode_of(batch, micro_steps, micro_step)]
        for micro_step in micro_steps.micro_steps
    ]
    order = order_micro_batches(times, micro_steps.stages, shares)
    pipelines: list[PlannedPipeline] = []
    for number, place in enumerate(order):
        first = 0
        for k, positions in micro_steps.micro_steps[place].groups:
            scheme = micro_steps.schemes[k]
            pipelines.append(
                plan_pipeline(
                    scheme,
                    micro_steps.classes[k],
                    ranks_of_stages(scheme, first, micro_steps.ranks),
                    [positions],
                    batch,
                    forward_fraction=forward_fraction,
                    micro_step=number,
                )
            )
            first += scheme.stage_gpus
    return pipelines


def _mode_of(batch: Batch, micro_steps: MicroSteps, micro_step: MicroStep) -> str:
    """Return the recomputation mode of a micro-step's slowest micro-batch."""
    _, mode = max(
        (chosen.micro_batch_ms(lengths), chosen.name or "")
        for k, positions in micro_step.groups
        if (lengths := [batch.lengths[i] for i in positions])
        and (chosen := micro_steps.classes[k].choose_mode(lengths))
    )
    return mode
