"""A comparison on 1,024 GPUs: how long it takes, and what comes out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from benchmarks.settings import Data, markdown, published_schemes, published_sync, workload
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import mean_compute_ms

GPUS, STEPS, SEED = 1024, 10, 0
OPTIONS = Options(("static", "megatron", "hotspa", "hydraulis"), fast=True)
"""The published packing alone would take hours."""


def run(data: Sequence[Data]) -> None:
    """Print every system's time and that of the whole comparison."""
    profile = published_schemes()
    where = workload(GPUS)
    sync = published_sync(profile, GPUS)
    for lengths in data:
        start = time.perf_counter()
        comparison = compare(
            profile, where, lengths.lengths, STEPS, sync, seed=SEED, options=OPTIONS
        )
        took = time.perf_counter() - start
        planning = median(step.planning_ms or 0.0 for step in comparison.ours.iterations)
        print(
            f"### {lengths.name}: {GPUS:,} GPUs, {STEPS} steps of {where.tokens:,} tokens: "
            f"compared in {took:.0f} s, our planning {planning:.0f} ms a step\n"
        )
        rows = [
            [
                system.name,
                f"{mean_compute_ms(system):,.0f}",
                f"{mean_compute_ms(system) / mean_compute_ms(comparison.ours):.2f}",
                f"{system.mean_ms / comparison.ours.mean_ms:.2f}",
            ]
            for system in comparison.systems
        ]
        print(
            markdown(
                ["system", "forward and backward (ms)", "over ours", "iteration, over ours"], rows
            )
        )
        print()
