"""When each pipeline of a step runs: the list-order schedule of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.plans.plan import Plan, PlannedPipeline


@dataclass(frozen=True)
class Schedule:
    """Start and end of each pipeline and the end of the step, milliseconds from its start.

    ``slack_ms``: how much later each pipeline could end without the step ending later, list order
    and rounds unchanged; 0 on the pipelines that bind the step.
    """

    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
    slack_ms: tuple[float, ...]
    makespan_ms: float


def schedule(
    pipelines: Sequence[PlannedPipeline], durations_ms: Sequence[float] | None = None
) -> Schedule:
    """Find when each pipeline runs if every rank runs its pipelines in list order.

    A pipeline starts when its last rank is free and lasts its ``predicted_ms``, or its entry of
    ``durations_ms``. Where pipelines carry rounds, a round starts when the one before it has ended
    on every rank.
    """
    if durations_ms is None:
        durations_ms = [pipeline.predicted_ms for pipeline in pipelines]
    count = len(pipelines)
    starts, ends, slacks = [0.0] * count, [0.0] * count, [0.0] * count
    makespan = 0.0
    for indexes in _rounds(pipelines):
        round_start = makespan
        free: dict[int, float] = {}
        for index in indexes:
            ranks = pipelines[index].ranks
            start = max((free.get(rank, round_start) for rank in ranks), default=round_start)
            starts[index], ends[index] = start, start + durations_ms[index]
            free.update(dict.fromkeys(ranks, ends[index]))
            makespan = max(makespan, ends[index])
        # Backwards: the latest end that every later pipeline on the same ranks can bear.
        latest: dict[int, float] = {}
        for index in reversed(indexes):
            ranks = pipelines[index].ranks
            bound = min((latest.get(rank, makespan) for rank in ranks), default=makespan)
            slacks[index] = bound - ends[index]
            latest.update(dict.fromkeys(ranks, bound - durations_ms[index]))
    return Schedule(tuple(starts), tuple(ends), tuple(slacks), makespan)


def makespan_ms(plan: Plan) -> float:
    """Return the end of the step in the list-order schedule of the plan's pipelines."""
    return schedule(plan.pipelines).makespan_ms


def _rounds(pipelines: Sequence[PlannedPipeline]) -> list[list[int]]:
    """List indexes of pipelines by round, ascending; those without a round first, as one."""
    by_round: dict[int, list[int]] = {}
    for index, pipeline in enumerate(pipelines):
        by_round.setdefault(-1 if pipeline.round is None else pipeline.round, []).append(index)
    return [by_round[number] for number in sorted(by_round)]
