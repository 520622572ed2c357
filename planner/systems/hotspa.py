"""HotSPa-like: a homogeneous strategy for each interval of lengths, each on all GPUs in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution, compute_ms
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.systems.megatron import assign_windows
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_table import HOTSPA, find_published_strategies, problem_of
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Strategy

NAME = "HotSPa-like"
BOUNDS = (4096, 16384)
"""Ends of the intervals below the last, as published: up to 4K, up to 16K, the rest."""

SWITCH_MS = 2000.0
"""Switches of an iteration together, as published for 7B on 8 GPUs."""


@dataclass(frozen=True)
class Interval:
    """Sequences longer than ``above`` and up to ``to`` tokens, and the strategy that runs them."""

    above: int
    to: int
    strategy: Strategy


def hotspa(setting: Setting, *, switch_ms: float = SWITCH_MS) -> list[ComparedSystem | Skipped]:
    """Set up the system with windows and round-robin, and with our dispatch and packing.

    ``switch_ms``: the switches of an iteration together. Strategies are Table 3's if it lists
    ones that the profile can run, else those with the least mean computation on the batches.
    """
    if setting.profile.lockstep:
        why = "it switches between tp and pp degrees, which a ZeRO-3 profile does not have"
        return [Skipped("hotspa", NAME, why)]
    if setting.lockstep:
        why = "its pipelines run independently, but here all ranks run in lockstep"
        return [Skipped("hotspa", NAME, why)]
    intervals, origin = _intervals(setting)
    if len(intervals) < 2:
        why = (
            f"fewer than two intervals of lengths: the longest sequence has {setting.longest:,} "
            f"tokens, the first interval ends at {BOUNDS[0]:,}"
        )
        return [Skipped("hotspa", NAME, why)]
    text = ", then ".join(f"{i.strategy} to {i.to:,}" for i in intervals)
    one_switch_ms = switch_ms / (len(intervals) - 1)
    described = f"{text} tokens, {origin}; {switch_ms:g} ms of switching"
    return [
        ComparedSystem(
            "hotspa",
            NAME,
            f"{described}; first-fit-decreasing windows of the interval's length, round-robin",
            False,
            lambda batch: _run(setting, batch, intervals, one_switch_ms, balanced=False),
        ),
        ComparedSystem(
            "hotspa-balanced",
            f"{NAME}, balanced",
            f"{described}; our dispatch and packing in each phase",
            True,
            lambda batch: _run(setting, batch, intervals, one_switch_ms, balanced=True),
        ),
    ]


def _intervals(setting: Setting) -> tuple[list[Interval], str]:
    """List intervals, longest lengths first, with their strategies and the source of those."""
    longest, workload = setting.longest, setting.workload
    ends = [bound for bound in BOUNDS if bound < longest] + [longest]
    ranges = list(zip([0, *ends], ends, strict=False))[::-1]
    named = find_published_strategies(HOTSPA, setting.profile.name, workload.gpus, workload.max_len)
    reach = {scheme: model.max_sequence for scheme, model in setting.models.items()}
    intervals, searched = [], []
    for place, (above, to) in enumerate(ranges):
        strategy = named[place] if len(named) == len(ranges) else None
        problem = "" if strategy is None else problem_of(strategy, workload.gpus, to, reach)
        if problem:
            searched.append(f"to {to:,} searched, as Table 3's {strategy} does not run: {problem}")
        if strategy is None or problem:
            strategy = _search(setting, above, to)
        if strategy is None:
            return [], ""
        intervals.append(Interval(above, to, strategy))
    if len(named) != len(ranges):
        return intervals, "searched (Hydraulis Table 3 has none for this setting)"
    return intervals, "; ".join(["as published (Hydraulis Table 3)", *searched])


def _search(setting: Setting, above: int, to: int) -> Strategy | None:
    """Find the homogeneous strategy with the least mean time for sequences of a range."""
    options = homogeneous_strategies(setting.models, setting.workload.gpus, to)
    if not options:
        return None
    fraction = setting.profile.forward_fraction

    def mean_ms(strategy: Strategy) -> float:
        interval = Interval(above, to, strategy)
        return mean(
            compute_ms([_windows(setting, batch, interval, inside)], fraction)
            if (inside := _inside(batch, interval))
            else 0.0
            for batch in setting.batches
        )

    return min(options, key=mean_ms)


def _inside(batch: Batch, interval: Interval) -> list[int]:
    return [i for i, n in enumerate(batch.lengths) if interval.above < n <= interval.to]


def _windows(
    setting: Setting, batch: Batch, interval: Interval, inside: Sequence[int]
) -> tuple[PlannedPipeline, ...]:
    """Fill windows of the interval's context, one to a micro-batch."""
    return assign_windows(setting, batch, interval.strategy, interval.to, inside)


def _run(
    setting: Setting,
    batch: Batch,
    intervals: Sequence[Interval],
    switch_ms: float,
    *,
    balanced: bool,
) -> Execution:
    phases = []
    for interval in intervals:
        inside = _inside(batch, interval)
        if not inside:
            continue
        if balanced:
            phases.append(_place_balanced(setting, batch, interval, inside))
        else:
            phases.append(_windows(setting, batch, interval, inside))
    return Execution(tuple(phases), switch_ms=switch_ms)


def _place_balanced(
    setting: Setting, batch: Batch, interval: Interval, inside: Sequence[int]
) -> tuple[PlannedPipeline, ...]:
    """Dispatch and pack the interval's sequences our way, as positions of the whole batch."""
    part = Batch(
        batch.step, tuple(batch.ids[i] for i in inside), tuple(batch.lengths[i] for i in inside)
    )
    (pipelines,) = setting.run_balanced(part, [interval.strategy]).phases
    return tuple(
        replace(
            pipeline,
            micro_batches=tuple(
                replace(micro, sequences=tuple(inside[j] for j in micro.sequences))
                for micro in pipeline.micro_batches
            ),
        )
        for pipeline in pipelines
    )
