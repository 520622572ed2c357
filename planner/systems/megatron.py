"""Megatron-like: one static ⟨tp, pp⟩ × dp, windows of the context length, round-robin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.simulation.iteration import Execution, compute_ms
from seqplan.planner.simulation.one_f_one_b import order_micro_batches
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_table import MEGATRON, find_published_strategies, problem_of
from seqplan.planner.systems.windows import first_fit_decreasing, round_robin
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.scheme import Strategy

NAME = "Megatron-like"

BALANCED_EXPERTS = "with experts on several ranks it is the best static strategy, balanced"


def megatron(setting: Setting, *, search: bool = False) -> list[ComparedSystem | Skipped]:
    """Set up varlen attention, dense attention, and our dispatch and packing, on one strategy.

    The configuration is Table 3's if it lists one that the profile can run, else (or with
    ``search``) the one with the least mean computation on the batches.
    """
    if setting.profile.lockstep:
        why = "under ZeRO-3 all ranks run in lockstep; the static system there is DeepSpeed-like"
        return [Skipped("megatron", NAME, why)]
    if setting.lockstep:
        why = "its replicas run independently; in lockstep see the best static strategy, balanced"
        return [Skipped("megatron", NAME, why)]
    chosen = static_strategy(setting, search=search)
    if chosen is None:
        return [Skipped("megatron", NAME, f"no scheme holds {setting.longest:,} tokens")]
    strategy, origin = chosen
    window = min(setting.workload.max_len, setting.longest)
    described = f"{strategy}, {origin}; first-fit-decreasing windows of {window:,} tokens"
    systems: list[ComparedSystem | Skipped] = [
        ComparedSystem(
            "megatron",
            f"{NAME}, varlen",
            f"{described}, assigned round-robin; sequences of a window do not attend to each other",
            False,
            lambda batch: Execution((assign_windows(setting, batch, strategy, window),)),
            strategy,
        ),
        ComparedSystem(
            "megatron-dense",
            f"{NAME}, dense",
            f"{described}, assigned round-robin; attention over the whole window",
            False,
            lambda batch: Execution(
                (dense(setting, batch, assign_windows(setting, batch, strategy, window)),)
            ),
            strategy,
        ),
        ComparedSystem(
            "megatron-balanced",
            f"{NAME}, balanced",
            f"{strategy}, {origin}; our dispatch and packing",
            True,
            lambda batch: setting.run_balanced(batch, [strategy]),
            strategy,
        ),
    ]
    if setting.static_experts is not None:
        systems[-1] = Skipped("megatron-balanced", f"{NAME}, balanced", BALANCED_EXPERTS)
    return systems


def static_strategy(setting: Setting, *, search: bool) -> tuple[Strategy, str] | None:
    """Choose the static strategy with its source; None if none holds the longest."""
    workload = setting.workload
    reach = {scheme: model.max_sequence for scheme, model in setting.models.items()}
    why = "searched"
    if not search:
        named = find_published_strategies(
            MEGATRON, setting.profile.name, workload.gpus, workload.max_len
        )
        if named:
            problem = problem_of(named[0], workload.gpus, setting.longest, reach)
            if not problem:
                return named[0], "as published (Hydraulis Table 3)"
            why = f"searched, since of the published configuration {problem}"
        else:
            why = "searched, since none is published for this setting"
    window = min(workload.max_len, setting.longest)
    fraction = setting.profile.forward_fraction
    times = {
        strategy: mean(
            compute_ms(
                [assign_windows(setting, batch, strategy, window)],
                fraction,
                setting.expert_parallel,
            )
            for batch in setting.batches
        )
        + setting.sync.of_strategy_ms(strategy)
        for strategy in homogeneous_strategies(setting.models, workload.gpus, setting.longest)
    }
    if not times:
        return None
    return min(times, key=lambda strategy: times[strategy]), why


def assign_windows(
    setting: Setting,
    batch: Batch,
    strategy: Strategy,
    window: int,
    positions: Sequence[int] | None = None,
) -> tuple[PlannedPipeline, ...]:
    """Deal windows, one a micro-batch, to the pipelines of a homogeneous strategy.

    ``positions``: the sequences of the batch to run, by default all.
    """
    scheme, count = strategy.counts[0]
    unit = PipelineClass.from_model(setting.models[scheme], 1).unit
    chosen = range(len(batch.lengths)) if positions is None else positions
    lengths = [batch.lengths[i] for i in chosen]
    window = max(window, -(-max(lengths) // unit) * unit)
    windows = [[chosen[j] for j in part] for part in first_fit_decreasing(lengths, window, unit)]
    return setting.pipelines(batch, [(scheme, of) for of in round_robin(windows, count)])


def dense(
    setting: Setting, batch: Batch, pipelines: Sequence[PlannedPipeline]
) -> tuple[PlannedPipeline, ...]:
    """Cost the same micro-batches with attention over all their tokens: a·W² + b·W + c."""
    pipelines_made = []
    for pipeline in pipelines:
        latency = setting.models[pipeline.scheme].latency
        micro_batches: list[MicroBatch] = [
            replace(micro, cost_ms=round(latency.micro_batch_ms([micro.tokens]), 3))
            for micro in pipeline.micro_batches
        ]
        costs = [micro.cost_ms for micro in micro_batches]
        pp = pipeline.scheme.pp
        order = order_micro_batches(costs, pp, setting.forward_fraction)
        predicted = sum(costs) + (pp - 1) * max(costs, default=0.0)
        pipelines_made.append(
            replace(
                pipeline,
                micro_batches=tuple(micro_batches[j] for j in order),
                predicted_ms=round(predicted, 3),
            )
        )
    return tuple(pipelines_made)
