"""From rounds of groups to the plan: pipelines with a round each, in order of rounds."""

from __future__ import annotations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_rounds import MicroSteps, Round
from seqplan.planner.placement.assembly import (
    floor_us,
    plan_of,
    plan_pipeline,
    ranks_of_stages,
)
from seqplan.planner.placement.micro_batch_order import order_micro_batches
from seqplan.planner.simulation.one_f_one_b import ForwardFraction
from seqplan.planner.simulation.timeline import simulate_pipelines_ms
from seqplan.plans.plan import Plan, PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule


def assemble_rounds(
    batch: Batch,
    rounds: MicroSteps,
    planner: Provenance,
    world_size: int,
    *,
    forward_fraction: ForwardFraction,
    sync_ms: float | None = None,
) -> Plan:
    """Make the plan of a step in rounds.

    Groups take consecutive ranks of each stage, the largest first; with stages, rounds rise to the
    longest and fall. ``sync_ms``: as in the plan.
    """
    times = [round_.time_ms for round_ in rounds.rounds]
    shares = [
        forward_fraction
        if isinstance(forward_fraction, float)
        else forward_fraction[_mode_of(batch, rounds, round_)]
        for round_ in rounds.rounds
    ]
    order = order_micro_batches(times, rounds.stages, shares)
    pipelines: list[PlannedPipeline] = []
    for number, place in enumerate(order):
        first = 0
        for k, positions in rounds.rounds[place].groups:
            scheme = rounds.schemes[k]
            pipelines.append(
                plan_pipeline(
                    scheme,
                    rounds.classes[k],
                    ranks_of_stages(scheme, first, rounds.ranks),
                    [positions],
                    batch,
                    forward_fraction=forward_fraction,
                    round_=number,
                )
            )
            first += scheme.stage_gpus
    predicted = schedule(pipelines).makespan_ms
    if rounds.stages > 1 and not isinstance(forward_fraction, float):
        # Forward's share of the time differs between modes, and form S may be too short.
        predicted = max(predicted, simulate_pipelines_ms(pipelines, forward_fraction))
    predicted = round(predicted, 3)
    return plan_of(
        batch,
        planner,
        world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=min(floor_us(rounds.lower_bound_ms), predicted),
        selection=(),
        sync_ms=sync_ms,
        layout_bound_ms=rounds.lower_bound_ms,
    )


def _mode_of(batch: Batch, rounds: MicroSteps, round_: Round) -> str:
    """Return the recomputation mode of a round's slowest micro-batch."""
    _, mode = max(
        (chosen.micro_batch_ms(lengths), chosen.name or "")
        for k, positions in round_.groups
        if (lengths := [batch.lengths[i] for i in positions])
        and (chosen := rounds.classes[k].choose_mode(lengths))
    )
    return mode
