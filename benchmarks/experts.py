"""Experts over ranks: steps at each degree, and what plans lose that do not count with blocks.

The same batches for all degrees of a shipped profile. Plans *without blocks* choose groups as if
every pipeline ran by itself; their micro-batches, the most expensive first, then wait for the
others of their component. All with the derived sync. The last row is the best static run: one
degree, recomputation mode and scheme throughout, by our dispatch and packing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.systems.static_experts import find_static_expert_run
from seqplan.planner.workload import Workload
from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.plan import PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule

PROFILE, GPUS, CONTEXT, STEPS = "qwen3-30b-a3b-h100-80gb", 64, 32_768, 2
TOKENS = (1_000_000, 4_000_000)


def run(data: Sequence[Data]) -> None:
    """Print time, gap and planning time by degree."""
    rows = [row for source in data for tokens in TOKENS for row in _compare_degrees(source, tokens)]
    print(f"### Experts over ranks: {PROFILE}, {GPUS} GPUs, {CONTEXT // 1024}K, {STEPS} steps\n")
    head = ["lengths, tokens a step", "E", "step, sync included", "of it sync", "gap"]
    print(markdown([*head, "without blocks / ours", "planning, CPU s"], rows) + "\n")


def _compare_degrees(source: Data, tokens: int) -> list[list[str]]:
    workload = Workload(gpus=GPUS, max_len=CONTEXT, tokens=tokens)
    batches = list(Sampler(source.lengths, tokens, CONTEXT, 0).batches(STEPS))
    whole = load_shipped(PROFILE)
    rows, first_ms = [], 0.0
    for degree in whole.expert_degrees:
        profile = whole.at_expert_parallel(degree)
        problem = PlanningProblem(
            profile=profile, workload=workload, sync=choose_sync(profile, GPUS), execution="regroup"
        )
        planner = StepPlanner(problem)
        began = time.process_time()
        plans = [planner.plan(batch) for batch in batches]
        cpu_s = (time.process_time() - began) / len(plans)
        times = [plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans]
        first_ms = first_ms or float(np.mean(times))
        ratios = [
            _plan_without_blocks(problem, batch) / time_ms
            for batch, time_ms in zip(batches, times, strict=True)
        ]
        rows.append(
            [
                f"{source.name}, {tokens / 1e6:g}M",
                str(degree),
                f"{np.mean(times) / first_ms:.3f} of E = {whole.expert_degrees[0]}",
                f"{np.mean([plan.sync_ms or 0.0 for plan in plans]) / np.mean(times):.0%}",
                f"{np.median([plan.gap for plan in plans]):.1%}",
                f"{np.mean(ratios):.3f}",
                f"{cpu_s:.1f}",
            ]
        )
    return [*rows, _static_row(source, workload, batches, first_ms)]


def _static_row(
    source: Data, workload: Workload, batches: Sequence[Batch], first_ms: float
) -> list[str]:
    whole = load_shipped(PROFILE)
    best = find_static_expert_run(
        whole,
        workload,
        batches,
        int(min(source.lengths.max(), CONTEXT)),
        choose_sync(whole.at_expert_parallel(1), GPUS),
        lockstep=False,
    )
    assert best is not None
    planner = StepPlanner(best, PlanningOptions(prove=False))
    plans = [planner.plan(batch) for batch in batches]
    sync_ms = float(np.mean([plan.sync_ms or 0.0 for plan in plans]))
    total_ms = sync_ms + float(np.mean([plan.predicted_ms for plan in plans]))
    (scheme,) = best.models
    return [
        f"{source.name}, {workload.tokens / 1e6:g}M",
        f"{best.profile.expert_parallel}: {scheme} alone, {best.profile.modes[0].name}",
        f"{total_ms / first_ms:.3f} of E = {whole.expert_degrees[0]}",
        f"{sync_ms / total_ms:.0%}",
        *["—"] * 3,
    ]


def _plan_without_blocks(problem: PlanningProblem, batch: Batch) -> float:
    """Time a plan of independent pipelines in the micro-steps of its components (ms)."""
    degree = problem.profile.expert_parallel
    free = PipelinePlanner(problem, PlanningOptions(prove=False), Provenance("", 0, "", None))
    plan = free.plan(batch)
    coupled = [_couple(pipeline, problem, degree) for pipeline in plan.pipelines]
    return schedule(coupled, expert_parallel=degree).makespan_ms + (plan.sync_ms or 0.0)


def _couple(pipeline: PlannedPipeline, problem: PlanningProblem, degree: int) -> PlannedPipeline:
    """Put the most expensive micro-batches first, and state what they share."""
    if holds_whole_blocks(pipeline.scheme, pipeline.ranks, degree):
        return pipeline
    model = problem.models[pipeline.scheme]
    ordered = sorted(pipeline.micro_batches, key=lambda micro: -micro.cost_ms)
    shared = [
        (model.find_mode(micro.recompute) or model).b_shared * micro.tokens for micro in ordered
    ]
    return replace(
        pipeline,
        micro_batches=tuple(
            replace(micro, shared_ms=shared_ms)
            for micro, shared_ms in zip(ordered, shared, strict=True)
        ),
    )
