"""When each pipeline of a step runs: the list-order schedule of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from seqplan.plans.experts import ExpertSchedule, holds_whole_blocks
from seqplan.plans.plan import Plan, PlannedPipeline


@dataclass(frozen=True)
class Schedule:
    """Start and end of each pipeline and of the step, in ms from its start.

    ``slack_ms``: how much later each pipeline could end without the step ending later, list order
    and micro-steps unchanged; 0 on the pipelines that bind the step, or, with stages, their
    micro-step. Of pipelines that share experts, how much longer each of their micro-batches could
    take: 0 on those that bind a micro-step.
    """

    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
    slack_ms: tuple[float, ...]
    makespan_ms: float


def schedule(
    pipelines: Sequence[PlannedPipeline],
    durations_ms: Sequence[float] | None = None,
    expert_parallel: int = 1,
) -> Schedule:
    """Find when each pipeline runs if every rank runs its pipelines in list order.

    A pipeline starts when its last rank is free and lasts its ``predicted_ms``, or its entry of
    ``durations_ms``. If pipelines carry micro-steps, a micro-step starts when the one before it has
    ended on every rank; with stages it follows through them as 1F1B does, see ``_through_stages``.
    With ``expert_parallel`` above 1, pipelines that hold parts of a block wait for each other in
    every micro-step, see ``_in_components``.
    """
    if durations_ms is None:
        durations_ms = [pipeline.predicted_ms for pipeline in pipelines]
    if (stages := stages_of_micro_steps(pipelines)) > 1:
        return _through_stages(pipelines, durations_ms, stages)
    if expert_parallel > 1:
        return _in_components(pipelines, durations_ms, expert_parallel)
    count = len(pipelines)
    starts, ends, slacks = [0.0] * count, [0.0] * count, [0.0] * count
    makespan = 0.0
    for indexes in _micro_steps(pipelines):
        micro_step_start = makespan
        free: dict[int, float] = {}
        for index in indexes:
            ranks = pipelines[index].ranks
            start = max(
                (free.get(rank, micro_step_start) for rank in ranks), default=micro_step_start
            )
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


def _in_components(
    pipelines: Sequence[PlannedPipeline], durations_ms: Sequence[float], expert_parallel: int
) -> Schedule:
    """Schedule components of expert parallelism next to each other.

    A coupled one lasts as long as its micro-steps (``ExpertSchedule.time_micro_steps``), of which
    a pipeline takes those of its micro-batches; others are as without expert parallelism.
    """
    steps = ExpertSchedule(pipelines, expert_parallel)
    starts, ends, slacks = ([0.0] * len(pipelines) for _ in range(3))
    free = [
        index
        for component in steps.components
        if not component.coupled
        for index in component.pipelines
    ]
    free.sort()
    alone = schedule([pipelines[index] for index in free], [durations_ms[index] for index in free])
    for place, index in enumerate(free):
        starts[index], ends[index] = alone.start_ms[place], alone.end_ms[place]
        slacks[index] = alone.slack_ms[place]
    makespans = dict.fromkeys(free, alone.makespan_ms)
    stretch = [
        duration / pipeline.predicted_ms if pipeline.predicted_ms else 1.0
        for duration, pipeline in zip(durations_ms, pipelines, strict=True)
    ]
    for component in steps.components:
        if not component.coupled:
            continue
        clock = list(accumulate(steps.time_micro_steps(component, stretch), initial=0.0))
        slack_ms = steps.find_slacks(component, stretch)
        for index in component.pipelines:
            slacks[index] = slack_ms.get(index, clock[-1])
            first = steps.first[index]
            starts[index] = clock[min(first, len(clock) - 1)]
            last = first + len(pipelines[index].micro_batches)
            ends[index] = max(clock[min(last, len(clock) - 1)], starts[index])
            makespans[index] = clock[-1]
    makespan = max(makespans.values(), default=0.0)
    slacks = [slack + makespan - makespans[index] for index, slack in enumerate(slacks)]
    return Schedule(tuple(starts), tuple(ends), tuple(slacks), makespan)


def stages_of_micro_steps(pipelines: Sequence[PlannedPipeline]) -> int:
    """Return the stages that the micro-steps of a step go through; 1 if it has no micro-steps."""
    return max((p.scheme.pp for p in pipelines if p.micro_step is not None), default=1)


def _through_stages(
    pipelines: Sequence[PlannedPipeline], durations_ms: Sequence[float], stages: int
) -> Schedule:
    """Schedule micro-steps that go through stages, in form S.

    A group's duration is that of its one micro-batch on all stages, and a micro-step lasts at one
    stage as long as its slowest group. The first stage begins a micro-step when it would have done
    the ones before it, and filling and draining take (stages − 1) times the longest micro-step.
    """
    micro_steps = _micro_steps(pipelines)
    at_stage = [duration / stages for duration in durations_ms]
    lasts = [max(at_stage[index] for index in indexes) for indexes in micro_steps]
    drain = (stages - 1) * max(lasts)
    starts, ends, slacks = ([0.0] * len(pipelines) for _ in range(3))
    clock = 0.0
    for indexes, time in zip(micro_steps, lasts, strict=True):
        for index in indexes:
            starts[index] = clock
            ends[index] = clock + at_stage[index] + drain
            slacks[index] = (time - at_stage[index]) * stages
        clock += time
    return Schedule(tuple(starts), tuple(ends), tuple(slacks), clock + drain)


def makespan_ms(plan: Plan) -> float:
    """Return the end of the step in the list-order schedule of the plan's pipelines."""
    return schedule(plan.pipelines, expert_parallel=plan.expert_parallel).makespan_ms


def predict_rank_times(plan: Plan) -> dict[int, float]:
    """Predict the time (ms) that each rank with work measures for its micro-batches.

    With stages it contains the waits for the pipeline's other stages. If a pipeline holds a part of
    a block of experts, it is the time of the component, whose ranks wait for each other in every
    micro-step. Other ranks compute alone: Σ of the micro-batches' costs.
    """
    in_stages = stages_of_micro_steps(plan.pipelines) > 1
    coupled = _time_coupled(plan)
    times: dict[int, float] = {}
    for index, pipeline in enumerate(plan.pipelines):
        if not pipeline.micro_batches:
            continue
        if in_stages or index in coupled:
            together_ms = plan.predicted_ms if in_stages else coupled[index]
            times.update(dict.fromkeys(pipeline.ranks, together_ms))
            continue
        alone_ms = pipeline.predicted_ms
        if pipeline.scheme.pp == 1:
            alone_ms = sum(batch.cost_ms for batch in pipeline.micro_batches)
        for rank in pipeline.ranks:
            times[rank] = times.get(rank, 0.0) + alone_ms
    return times


def list_idle_ranks(plan: Plan) -> tuple[int, ...]:
    """List the ranks without a micro-batch, ascending; lost ones, too."""
    busy = {rank for each in plan.pipelines if each.micro_batches for rank in each.ranks}
    return tuple(rank for rank in range(plan.world_size) if rank not in busy)


def _time_coupled(plan: Plan) -> dict[int, float]:
    """Return the time (ms) of each coupled component, by the place of its pipelines.

    Empty in lockstep of whole blocks, which wait for each other's parameters alone.
    """
    degree = plan.expert_parallel
    if all(holds_whole_blocks(each.scheme, each.ranks, degree) for each in plan.pipelines):
        return {}
    steps = ExpertSchedule(plan.pipelines, plan.expert_parallel)
    stretch = [1.0] * len(plan.pipelines)
    return {
        index: sum(steps.time_micro_steps(component, stretch))
        for component in steps.components
        if component.coupled
        for index in component.pipelines
    }


def _micro_steps(pipelines: Sequence[PlannedPipeline]) -> list[list[int]]:
    """List indexes of pipelines by micro-step, ascending; those without one first."""
    by_micro_step: dict[int, list[int]] = {}
    for index, pipeline in enumerate(pipelines):
        by_micro_step.setdefault(
            -1 if pipeline.micro_step is None else pipeline.micro_step, []
        ).append(index)
    return [by_micro_step[number] for number in sorted(by_micro_step)]
