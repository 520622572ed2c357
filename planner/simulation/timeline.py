"""When every forward and backward of a plan runs: 1F1B in each pipeline, placed in the step."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.planner.simulation.one_f_one_b import (
    FORWARD_FRACTION,
    TimedPass,
    durations_ms,
    timeline,
)
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import schedule


@dataclass(frozen=True)
class PipelineTimeline:
    """A pipeline's span in the step and its passes, by stage and then by start; ms from its start.

    ``events`` count from the start of the step, too.
    """

    start_ms: float
    end_ms: float
    events: tuple[TimedPass, ...]


@dataclass(frozen=True)
class PlanTimeline:
    """The pipelines in plan order, and the end of the last (ms)."""

    pipelines: tuple[PipelineTimeline, ...]
    simulated_ms: float


def plan_timeline(plan: Plan, forward_fraction: float = FORWARD_FRACTION) -> PlanTimeline:
    """Time every pass of a sound plan.

    Every pipeline takes its 1F1B simulation; pipelines that share ranks follow one another and
    rounds wait for each other, as in the plan.
    """
    costs = [[micro.cost_ms for micro in pipeline.micro_batches] for pipeline in plan.pipelines]
    times = schedule(plan.pipelines, durations_ms(plan.pipelines, forward_fraction))
    spans = zip(times.start_ms, times.end_ms, costs, plan.pipelines, strict=True)
    return PlanTimeline(
        tuple(
            PipelineTimeline(
                begin,
                end,
                tuple(
                    TimedPass(
                        event.stage,
                        event.phase,
                        event.micro_batch,
                        begin + event.start_ms,
                        begin + event.end_ms,
                    )
                    for event in timeline(stage_costs, pipeline.scheme.pp, forward_fraction)
                ),
            )
            for begin, end, stage_costs, pipeline in spans
        ),
        times.makespan_ms,
    )


def simulate_plan_ms(plan: Plan, forward_fraction: float = FORWARD_FRACTION) -> float:
    """Return the end of the step (ms) when every pipeline takes its 1F1B simulation, not form S.

    Pipelines that share ranks follow one another and rounds wait for each other, as in the plan.
    """
    return schedule(plan.pipelines, durations_ms(plan.pipelines, forward_fraction)).makespan_ms
