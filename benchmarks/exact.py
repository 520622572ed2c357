"""Exact answers: what constraint programming makes of the steps with a large gap."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import PROFILE, Data, markdown, published_schemes, workload
from benchmarks.step import SEED, STEPS
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.exact.close_gap import EXACT_GAP
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner

GPUS = 64


def run(data: Sequence[Data], contexts: Sequence[int] = (32768, 16384)) -> None:
    """Print the gaps above ``EXACT_GAP`` of the steps of ``./run bench step`` before and after."""
    profile = published_schemes()
    rows = []
    for source in data:
        for context in contexts:
            where = workload(GPUS, context)
            proposal = make_proposal(profile, where, source.lengths, sync=None)
            planner, exact = (
                StepPlanner(proposal),
                StepPlanner(proposal, PlanningOptions(exact=True)),
            )
            for batch in Sampler(source.lengths, where.tokens, context, SEED).batches(STEPS):
                before = planner.plan(batch)
                if before.gap <= EXACT_GAP:
                    continue
                start = time.perf_counter()
                after = exact.plan(batch)
                seconds = time.perf_counter() - start
                shorter = 1 - after.predicted_ms / before.predicted_ms
                rows.append(
                    [
                        source.name,
                        f"{context:,}",
                        str(batch.step),
                        str(before.strategy),
                        f"{before.gap * 100:.2f} %",
                        f"{after.gap * 100:.2f} %",
                        f"{shorter * 100:.2f} %",
                        f"{seconds:.1f} s",
                    ]
                )
    print(f"### Exact answers, {STEPS} steps, {GPUS} GPUs ({PROFILE})\n")
    head = ["lengths", "context", "step", "strategy", "gap before", "after", "step shorter by"]
    print(markdown([*head, "planning"], rows) + "\n")
    gaps = [float(row[5].split()[0]) for row in rows]
    closed = int(np.sum(np.array(gaps) <= EXACT_GAP * 100))
    print(f"{closed} of {len(rows)} steps end at or below {EXACT_GAP:.0%}\n")
