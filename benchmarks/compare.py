"""Every system of ``seqplan compare`` in the published setting of 32B on 64 GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

from benchmarks.settings import PROFILE, Data, cluster, markdown
from seqplan.planner.compare import Options, ablation, compare, mean_propagation_ms
from seqplan.planner.exchange import exchange_of
from seqplan.profiler.shipped import shipped

GPUS, STEPS, SEED = 64, 5, 0
CONTEXTS = (32768, 16384)


def run(data: Sequence[Data]) -> None:
    """Print a table for each data set and context, and the steps of the ablation."""
    profile = shipped(PROFILE)
    exchange = exchange_of(profile, GPUS)
    for item in data:
        for context in CONTEXTS:
            where = cluster(GPUS, context)
            start = time.perf_counter()
            found = compare(
                profile, where, item.lengths, STEPS, exchange, seed=SEED, options=Options()
            )
            took = time.perf_counter() - start
            rows = []
            for system in found.systems:
                ratios = found.speedups(system)
                alone = mean_propagation_ms(system) / mean_propagation_ms(found.ours)
                whole = system.mean_ms / found.ours.mean_ms
                rows.append(
                    [
                        system.name,
                        f"{mean_propagation_ms(system):,.0f}",
                        f"{alone:.2f}",
                        f"{system.mean_ms:,.0f}",
                        f"{whole:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
                        f"{mean(step.imbalance for step in system.iterations):.2f}",
                        f"{mean(step.bubble_ratio for step in system.iterations):.2f}",
                    ]
                )
            print(
                f"### {item.name}, context {context:,}: simulated on profile {PROFILE}, {GPUS} "
                f"GPUs, {STEPS} steps of {where.tokens:,} tokens ({took:.0f} s)\n"
            )
            head = ["system", "propagation (ms)", "over ours", "iteration (ms)", "over ours"]
            print(markdown([*head, "imbalance", "bubble"], rows) + "\n")
            stages = " → ".join(f"{s.name} {gain:.2f}×" for s, gain in ablation(found.systems))
            print(f"{exchange.source}\n\nstep by step, whole iterations: {stages}\n")
