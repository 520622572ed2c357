"""From rounds of groups to the plan: pipelines with a round each, in order of rounds."""

from __future__ import annotations

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.assembly import floor_us, plan_of, planned_pipeline
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.rounds.plan_rounds import Rounds
from seqplan.plans.plan import Plan, PlannedPipeline, Planner
from seqplan.plans.scheme import Scheme


def assemble_rounds(batch: Batch, rounds: Rounds, planner: Planner, world_size: int) -> Plan:
    """Make the plan of a step in rounds. Groups take consecutive ranks, the largest first."""
    pools = [iter(positions) for positions in batch.positions]
    pipelines: list[PlannedPipeline] = []
    for number, round_ in enumerate(rounds.rounds):
        first = 0
        for k, micro in round_.groups:
            scheme: Scheme = rounds.schemes[k]
            pipeline_class: PipelineClass = rounds.classes[k]
            positions = [next(pools[i]) for i, n in micro for _ in range(n)]
            ranks = tuple(range(first, first + scheme.gpus))
            first += scheme.gpus
            pipelines.append(
                planned_pipeline(
                    scheme,
                    pipeline_class,
                    ranks,
                    [positions],
                    batch,
                    forward_fraction=1 / 3,
                    round_=number,
                )
            )
    slowest: dict[int | None, float] = {}
    for pipeline in pipelines:
        slowest[pipeline.round] = max(slowest.get(pipeline.round, 0.0), pipeline.predicted_ms)
    predicted = round(sum(slowest.values()), 3)
    bound = min(floor_us(rounds.lower_bound_ms), predicted)
    return plan_of(
        batch,
        planner,
        world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=bound,
        selection=(),
    )
