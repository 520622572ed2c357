"""Gaps of steps in lockstep of 32B on 64 GPUs: with the bound of plans, and with a closer one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import PROFILE, Data, markdown
from seqplan import Batch, StepPlanner, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.problem import PlanningOptions, PlanningProblem

GPUS, STEPS = 64, 8
CONTEXTS, TOKENS = (32_768, 131_072), (200_000, 800_000)


def run(data: Sequence[Data]) -> None:
    """Print gaps and CPU time by data set, context and tokens of a step."""
    profile = load_shipped(PROFILE)
    rows = []
    for source in data:
        for context in CONTEXTS:
            for tokens in TOKENS:
                problem = PlanningProblem(
                    profile=profile,
                    workload=Workload(GPUS, context, tokens),
                    sync=None,
                    execution="lockstep",
                )
                name = f"{source.name}, {context // 1024}K, {tokens:,}"
                rows.append([name, *_list_cells(problem, source, context, tokens)])
    print(f"### Lockstep, {PROFILE}, {GPUS} GPUs, {STEPS} steps\n")
    head = ["lengths, context, tokens", "micro-steps", "gap, median", "largest", "CPU"]
    print(markdown([*head, "closer bound, median", "largest", "CPU"], rows) + "\n")


def _list_cells(problem: PlanningProblem, source: Data, context: int, tokens: int) -> list[str]:
    cells, count = [], []
    for closer in (False, True):
        planner = StepPlanner(problem, PlanningOptions(prove_lockstep=closer))
        gaps, cpu_s = [], []
        for step in range(STEPS):
            drawn = np.random.default_rng(step).choice(source.lengths, tokens // 10)
            lengths = np.minimum(drawn, context)
            lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]
            began = time.process_time()
            plan = planner.plan(Batch.from_lengths(lengths.tolist()))
            cpu_s.append(time.process_time() - began)
            gaps.append(plan.gap)
            count.append(len({pipeline.micro_step for pipeline in plan.pipelines}))
        cells += [f"{np.median(gaps):.1%}", f"{max(gaps):.1%}", f"{np.median(cpu_s):.2f} s"]
    return [f"{min(count)}–{max(count)}", *cells]
