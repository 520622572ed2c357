"""Experts over ranks: steps at each degree, and what plans lose that do not count with blocks.

The same batches for all degrees of a shipped profile. Plans *without blocks* choose groups as if
every pipeline ran by itself; their micro-batches, the most expensive first, then wait for the
others of their component. All with the derived sync. The last row is the best static run: one
degree, recomputation mode and scheme throughout, by our dispatch and packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, median

from benchmarks.planning import PlannedSteps, draw_batches, plan_steps
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Batch, Profile, StepPlanner, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.pipeline_planner import PipelinePlanner
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.systems.static_experts import find_static_expert_run
from seqplan.plans.experts import holds_whole_blocks
from seqplan.plans.plan import PlannedPipeline, Provenance
from seqplan.plans.schedule import schedule

PROFILE, GPUS, CONTEXT = "qwen3-30b-a3b-h100-80gb", 64, 32_768


def compare_degrees(
    data: Sequence[Data], tokens: Sequence[int] = (1_000_000, 4_000_000), steps: int = 2
) -> Output:
    """Compare time, gap and planning time by degree of expert parallelism."""
    table = Table(
        "lengths, tokens a step | E | step, sync included | of it sync | gap"
        " | without blocks / ours | planning, CPU s",
        "{}, {:g}M | {} | {:.3f} of E = {} | {:.0%} | {} | {} | {}",
        title=f"Experts over ranks: {PROFILE}, {GPUS} GPUs, {CONTEXT // 1024}K, {steps} steps",
    )
    whole = load_shipped(PROFILE)
    for source, total in product(data, tokens):
        workload = Workload(gpus=GPUS, max_len=CONTEXT, tokens=total)
        batches = draw_batches(source, workload, steps)
        first_ms = 0.0
        for degree in whole.expert_degrees:
            profile = whole.at_expert_parallel(degree)
            sync = choose_sync(profile, GPUS)
            problem = PlanningProblem(
                profile=profile, workload=workload, sync=sync, execution="regroup"
            )
            planned = plan_steps(StepPlanner(problem).plan, batches)
            times = planned.iterations_ms
            first_ms = first_ms or fmean(times)
            apart = [_plan_without_blocks(problem, batch) for batch in batches]
            ratio, cpu_s = fmean(apart / times), fmean(planned.planning_ms) / 1e3
            rest = f"{median(planned.gaps):.1%}", f"{ratio:.3f}", f"{cpu_s:.1f}"
            cells = _list_cells(str(degree), planned, first_ms, whole)
            table.add(source.name, total / 1e6, *cells, *rest)
        longest = int(min(source.lengths.max(), CONTEXT))
        sync = choose_sync(whole.at_expert_parallel(1), GPUS)
        best = find_static_expert_run(whole, workload, batches, longest, sync, lockstep=False)
        assert best is not None
        planned = plan_steps(StepPlanner(best, PlanningOptions(prove=False)).plan, batches)
        (scheme,) = best.models
        name = f"{best.profile.expert_parallel}: {scheme} alone, {best.profile.modes[0].name}"
        cells = _list_cells(name, planned, first_ms, whole)
        table.add(source.name, total / 1e6, *cells, *["—"] * 3)
    yield table


def _list_cells(name: str, planned: PlannedSteps, first_ms: float, whole: Profile) -> Cells:
    ms = fmean(planned.iterations_ms)
    return name, ms / first_ms, whole.expert_degrees[0], planned.sync_ms / ms


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
