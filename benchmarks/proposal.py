"""Proposals: how long they take and how far above the bound over all strategies they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from benchmarks.settings import CLUSTERS, Data, markdown, published_schemes, workload
from seqplan.planner.proposal.eq4 import continuous_proposal, integer_strategies
from seqplan.planner.proposal.make_proposal import make_proposal

PUBLISHED_S = {64: 2.03, 1024: 107.21}
"""Hydraulis table 2: strategy proposal, CommonCrawl, 32K, one process."""


def run(data: Sequence[Data]) -> None:
    """Print the relaxation's time and both methods' proposals."""
    profile = published_schemes()
    rows = []
    for source in data:
        values, counts = np.unique(np.minimum(source.lengths, 32768), return_counts=True)
        every = np.arange(1, 32769)
        dense = np.zeros(32768)
        dense[values - 1] = counts
        for gpus in CLUSTERS:
            models = list(workload(gpus).models(profile).values())
            times, rounding = [], []
            for _ in range(9):
                start = time.perf_counter()
                relaxed = continuous_proposal(models, every, dense)
                times.append(time.perf_counter() - start)
                start = time.perf_counter()
                strategies = integer_strategies(relaxed, models, gpus)
                rounding.append(time.perf_counter() - start)
            rows.append(
                [
                    source.name,
                    str(gpus),
                    f"{median(times) * 1000:.1f} ms",
                    f"{median(rounding) * 1000:.0f} ms",
                    str(len(strategies)),
                    f"{PUBLISHED_S[gpus]:.2f} s",
                ]
            )
    print("### Eq. 4 relaxed, every L ≤ 32,768 at step 1 (median of 9)\n")
    head = ["lengths", "GPUs", "relaxation", "rounding", "strategies", "published (its table 2)"]
    print(markdown(head, rows) + "\n")

    rows = []
    for source in data:
        for gpus in CLUSTERS:
            for method in ("search", "eq4"):
                start = time.perf_counter()
                proposal = make_proposal(
                    profile, workload(gpus), source.lengths, method=method, sync=None
                )
                took = time.perf_counter() - start
                above = proposal.expected_ms / proposal.lower_bound_ms - 1
                rows.append(
                    [
                        source.name,
                        str(gpus),
                        method,
                        f"{took:.1f} s",
                        str(len(proposal.candidates)),
                        f"{proposal.expected_ms:,.0f} ms",
                        f"{100 * above:.1f} %",
                    ]
                )
    print("### Proposals (simulated on sampled batches with our dispatch and packing)\n")
    head = ["lengths", "GPUs", "method", "time", "kept", "expected step", "above bound"]
    print(markdown(head, rows) + "\n")
