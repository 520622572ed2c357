"""The simulated time of a whole plan: 1F1B in every pipeline, ranks and rounds as the plan says."""

from __future__ import annotations

from seqplan.planner.simulation.one_f_one_b import FORWARD_FRACTION, simulate_ms
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import schedule


def simulate_plan_ms(plan: Plan, forward_fraction: float = FORWARD_FRACTION) -> float:
    """End of the step (ms) when every pipeline takes its 1F1B simulation instead of its form S.

    Pipelines that share ranks follow one another and rounds wait for each other, as in the plan.
    """
    durations = [
        simulate_ms(
            [micro.cost_ms for micro in pipeline.micro_batches],
            pipeline.scheme.pp,
            forward_fraction,
        )
        for pipeline in plan.pipelines
    ]
    return schedule(plan.pipelines, durations).makespan_ms
