"""Against the published pipeline on the same batches: Eq. 4's pool, Alg. 1, Eq. 1 by CBC."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import PROFILE, Data, markdown, published_schemes, workload
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.simulation.one_f_one_b import simulate_ms
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.selection import select
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.systems.hydraulis import CBC_S, TRIALS, eq4_pool, run_published_step
from seqplan.planner.systems.setting import Setting
from seqplan.plans.plan import PlannedPipeline

GPUS, STEPS, SEED = 64, 20, 3


def run(data: Sequence[Data]) -> None:
    """Print both pipelines' times, simulated the same way, and the ratios."""
    profile = published_schemes()
    rows = []
    for source in data:
        where = workload(GPUS)
        ours = StepPlanner(make_proposal(profile, where, source.lengths, sync=None))
        sampler = Sampler(source.lengths, where.tokens, where.max_len, SEED)
        batches = tuple(sampler.batches(STEPS))
        setting = Setting(profile, where, batches, int(sampler.lengths.max()))
        pool = eq4_pool(setting, sampler.lengths)
        ratios, same, took = [], [], []
        for batch in batches:
            plan = ours.plan(batch)
            start = time.perf_counter()
            theirs = run_published_step(setting, pool, batch, fast=False, cbc_s=CBC_S).phases[0]
            took.append(time.perf_counter() - start)
            simulated = max(map(_simulated_ms, theirs))
            ratios.append(simulated / simulate_plan_ms(plan))
            balanced = select(batch, pool, ours.problem.models, GPUS, tailor=False)
            form_s = max(pipeline.predicted_ms for pipeline in theirs)
            same.append(form_s / balanced.placement.objective_ms)
        rows.append(
            [
                source.name,
                f"{np.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{np.mean(same):.2f} ({min(same):.2f} to {max(same):.2f})",
                f"{np.median(took):.1f} s",
            ]
        )
    print(f"### Published pipeline on the same batches ({PROFILE}, {GPUS} GPUs, {STEPS} steps)\n")
    print(f"{TRIALS} trials of Alg. 1, CBC {CBC_S} s per number of micro-batches; mean (range)\n")
    head = ["lengths", "its simulated step over ours", "over ours on its pool (form S)"]
    print(markdown([*head, "its planning, median"], rows) + "\n")


def _simulated_ms(pipeline: PlannedPipeline) -> float:
    costs = [micro.cost_ms for micro in pipeline.micro_batches]
    return simulate_ms(costs, pipeline.scheme.pp)
