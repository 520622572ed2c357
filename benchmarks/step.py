"""One step in one process: planning time and certified gap."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import CLUSTERS, PROFILE, Data, markdown, published_schemes, workload
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner

STEPS = 60
PUBLISHED_S = {64: (5.46 + 10.15) / 10, 1024: (38.56 + 13.46) / 10}
"""Hydraulis table 2: greedy dispatch and packing of ten iterations, ten processes, CommonCrawl."""

SEED = 3
"""Not the proposal's: its batches are others."""


def run(data: Sequence[Data], contexts: Sequence[int] = (32768, 16384)) -> None:
    """Print planning time and gap over steps that the proposal has not seen."""
    profile = published_schemes()
    rows = []
    for source in data:
        for context in contexts:
            for gpus in CLUSTERS:
                where = workload(gpus, context)
                proposal = make_proposal(profile, where, source.lengths, sync=None)
                planner = StepPlanner(proposal)
                sampler = Sampler(source.lengths, where.tokens, context, SEED)
                times, gaps, predicted = [], [], []
                for batch in sampler.batches(STEPS):
                    start = time.perf_counter()
                    plan = planner.plan(batch)
                    times.append((time.perf_counter() - start) * 1000)
                    gaps.append(plan.gap * 100)
                    predicted.append(plan.predicted_ms)
                rows.append(
                    [
                        source.name,
                        f"{context:,}",
                        f"{gpus:,}",
                        f"{np.mean(predicted):,.0f} ms",
                        f"{np.median(times):.1f} ms",
                        f"{np.percentile(times, 90):.1f} ms",
                        f"{np.median(gaps):.2f} %",
                        f"{np.percentile(gaps, 90):.2f} %",
                        f"{max(gaps):.2f} %",
                        f"{PUBLISHED_S[gpus]:.2f} s",
                    ]
                )
    print(f"### One step in one process, {STEPS} steps ({PROFILE})\n")
    head = ["lengths", "context", "GPUs", "mean step", "planning median", "p90", "gap median"]
    print(markdown([*head, "p90", "largest", "published planning"], rows) + "\n")
