"""When every forward and backward of a step runs: 1F1B in each pipeline, placed in the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from seqplan.planner.simulation.one_f_one_b import (
    FORWARD_FRACTION,
    ForwardFraction,
    TimedPass,
    durations_ms,
    shares_of,
    simulate_ms,
    timeline,
)
from seqplan.plans.experts import ExpertSchedule
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.schedule import schedule, stages_of_micro_steps


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


def plan_timeline(plan: Plan, forward_fraction: ForwardFraction = FORWARD_FRACTION) -> PlanTimeline:
    """Time every pass of a sound plan; see ``pipelines_timeline``."""
    return pipelines_timeline(plan.pipelines, forward_fraction, plan.expert_parallel)


def simulate_plan_ms(plan: Plan, forward_fraction: ForwardFraction = FORWARD_FRACTION) -> float:
    """Return the end of the step (ms) by each pipeline's 1F1B simulation."""
    return simulate_pipelines_ms(plan.pipelines, forward_fraction, plan.expert_parallel)


def pipelines_timeline(
    pipelines: Sequence[PlannedPipeline],
    forward_fraction: ForwardFraction = FORWARD_FRACTION,
    expert_parallel: int = 1,
) -> PlanTimeline:
    """Time every pass of the pipelines of a step.

    Every pipeline takes its 1F1B simulation; pipelines that share ranks follow one another and
    micro-steps wait for each other, as in a plan. Micro-steps with stages go through them in 1F1B
    order, each pass as long as that of its slowest group, in which the others wait. Pipelines with
    parts of a block of experts run in the micro-steps of their component, where a micro-batch takes
    at most the micro-step, as its block shares a part of its work.
    """
    if stages_of_micro_steps(pipelines) > 1:
        return _through_stages(pipelines, forward_fraction)
    durations = durations_ms(pipelines, forward_fraction)
    times = schedule(pipelines, durations, expert_parallel)
    spans = time_coupled_micro_batches(pipelines, expert_parallel)
    placed = [
        PipelineTimeline(
            start,
            end,
            _in_micro_steps(pipeline, spans[index], forward_fraction)
            if index in spans
            else tuple(
                replace(event, start_ms=start + event.start_ms, end_ms=start + event.end_ms)
                for event in timeline(
                    _costs(pipeline),
                    pipeline.scheme.pp,
                    shares_of(pipeline.micro_batches, forward_fraction),
                )
            ),
        )
        for index, (start, end, pipeline) in enumerate(
            zip(times.start_ms, times.end_ms, pipelines, strict=True)
        )
    ]
    return PlanTimeline(tuple(placed), times.makespan_ms)


def time_coupled_micro_batches(
    pipelines: Sequence[PlannedPipeline], expert_parallel: int
) -> dict[int, list[tuple[float, float]]]:
    """Time the micro-steps of pipelines with parts of a block: start and end of each micro-batch.

    By the pipeline's index; ms from the start of the step.
    """
    if expert_parallel == 1:
        return {}
    steps, spans = ExpertSchedule(pipelines, expert_parallel), {}
    for component in steps.components:
        if not component.coupled:
            continue
        lasts = steps.time_micro_steps(component, [1.0] * len(pipelines))
        clock = list(accumulate(lasts, initial=0.0))
        for index in component.pipelines:
            first = steps.first[index]
            number = len(pipelines[index].micro_batches)
            spans[index] = [(clock[k], clock[k + 1]) for k in range(first, first + number)]
    return spans


def _in_micro_steps(
    pipeline: PlannedPipeline,
    spans: Sequence[tuple[float, float]],
    forward_fraction: ForwardFraction,
) -> tuple[TimedPass, ...]:
    """Time the passes of micro-batches that begin with a micro-step and end by its end."""
    events = []
    shares = shares_of(pipeline.micro_batches, forward_fraction)
    costs = _costs(pipeline)
    for place, ((start, end), cost, share) in enumerate(zip(spans, costs, shares, strict=True)):
        length = min(cost, end - start)
        middle = start + share * length
        events.append(TimedPass(0, "F", place, start, middle))
        events.append(TimedPass(0, "B", place, middle, start + length))
    return tuple(events)


def simulate_pipelines_ms(
    pipelines: Sequence[PlannedPipeline],
    forward_fraction: ForwardFraction = FORWARD_FRACTION,
    expert_parallel: int = 1,
) -> float:
    """Return the end of the last of the pipelines (ms), as ``pipelines_timeline`` has it."""
    if (stages := stages_of_micro_steps(pipelines)) > 1:
        slowest = _slowest(pipelines)
        costs, shares = _costs_of(slowest), shares_of(slowest, forward_fraction)
        return simulate_ms(costs, stages, shares)
    durations = durations_ms(pipelines, forward_fraction)
    return schedule(pipelines, durations, expert_parallel).makespan_ms


def _through_stages(
    pipelines: Sequence[PlannedPipeline], forward_fraction: ForwardFraction
) -> PlanTimeline:
    of_steps = _slowest(pipelines)
    slowest, shares = _costs_of(of_steps), shares_of(of_steps, forward_fraction)
    of_micro_step: list[list[TimedPass]] = [[] for _ in slowest]
    for event in timeline(slowest, stages_of_micro_steps(pipelines), shares):
        of_micro_step[event.micro_batch].append(event)
    placed = []
    for pipeline in pipelines:
        number = pipeline.micro_step or 0
        share = sum(_costs(pipeline)) / slowest[number] if slowest[number] else 0.0
        events = tuple(
            replace(
                event,
                micro_batch=0,
                end_ms=event.start_ms + (event.end_ms - event.start_ms) * share,
            )
            for event in of_micro_step[number]
            if pipeline.micro_batches
        )
        start = min((event.start_ms for event in of_micro_step[number]), default=0.0)
        end = max((event.end_ms for event in events), default=start)
        placed.append(PipelineTimeline(start, end, events))
    end = max((event.end_ms for events in of_micro_step for event in events), default=0.0)
    return PlanTimeline(tuple(placed), end)


def _slowest(pipelines: Sequence[PlannedPipeline]) -> list[MicroBatch]:
    """Return the micro-batch that each micro-step lasts as long as at a stage: the slowest."""
    slowest = [_NOTHING] * (max(pipeline.micro_step or 0 for pipeline in pipelines) + 1)
    for pipeline in pipelines:
        number = pipeline.micro_step or 0
        slowest[number] = max(
            *pipeline.micro_batches, slowest[number], key=lambda micro: micro.cost_ms
        )
    modes = [micro.recompute for micro in slowest if micro.recompute is not None]
    # A micro-step without work takes no time in any mode.
    return [
        replace(micro, recompute=modes[0]) if micro is _NOTHING and modes else micro
        for micro in slowest
    ]


_NOTHING = MicroBatch((), 0, 0, 0.0)


def _costs_of(micro_batches: Sequence[MicroBatch]) -> list[float]:
    return [micro.cost_ms for micro in micro_batches]


def _costs(pipeline: PlannedPipeline) -> list[float]:
    return _costs_of(pipeline.micro_batches)
