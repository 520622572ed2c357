"""Every system of ``seqplan compare`` in the published setting of 32B on 64 GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

from benchmarks.settings import PROFILE, Data, markdown, published_schemes, published_sync, workload
from seqplan.planner.comparison.advice import ablation
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison, System, mean_compute_ms
from seqplan.planner.sync.times import GivenSyncTimes

GPUS, STEPS, SEED = 64, 20, 0
CONTEXTS = (32768, 16384)
UNAWARE = ("static", "megatron", "hotspa")
"""Systems that are run once more without a sync; Hydraulis does not weigh it anyway."""


def run(data: Sequence[Data]) -> None:
    """Print, for each data set and context, all systems with and without the sync."""
    profile = published_schemes()
    sync = published_sync(profile, GPUS)
    none = GivenSyncTimes(0.0, sync.optimizer_ms, "no sync", 0.0, 0.0)
    for source in data:
        for context in CONTEXTS:
            where = workload(GPUS, context)
            start = time.perf_counter()
            whole = compare(profile, where, source.lengths, STEPS, sync, seed=SEED)
            free = compare(
                profile, where, source.lengths, STEPS, none, seed=SEED, options=Options(UNAWARE)
            )
            took = time.perf_counter() - start
            print(
                f"### {source.name}, context {context:,}: simulated on profile {PROFILE}, {GPUS} "
                f"GPUs, {STEPS} steps of {where.tokens:,} tokens ({took:.0f} s)\n"
            )
            head = ["system", "forward and backward (ms)", "over ours that weigh nothing else"]
            head += ["iteration (ms)", "over ours that weigh the sync", "imbalance", "bubble"]
            rows = [_row(system, whole, free) for system in whole.systems]
            print(markdown(head, [_ours_free(free), *rows]) + "\n")
            stages = " → ".join(f"{s.name} {gain:.2f}×" for s, gain in ablation(whole.systems))
            print(f"{sync.source}\n\nstep by step, whole iterations: {stages}\n")


def _ours_free(free: Comparison) -> list[str]:
    ours = free.ours
    compute = f"{mean_compute_ms(ours):,.0f}"
    return [f"{ours.name}, by forward and backward alone", compute, "1.00", "—", "—", *_load(ours)]


def _row(system: System, whole: Comparison, free: Comparison) -> list[str]:
    """Propagation over plans that minimize it, iterations over plans that minimize those."""
    alone = next((s for s in free.systems if s.key == system.key), system)
    ratio = mean_compute_ms(alone) / mean_compute_ms(free.ours)
    by_selection = system.key in ("ours", "hydraulis-balanced")
    ratios = whole.speedups(system)
    return [
        system.name,
        f"{mean_compute_ms(system if by_selection else alone):,.0f}",
        "—" if by_selection else f"{ratio:.2f}",
        f"{system.mean_ms:,.0f}",
        f"{system.mean_ms / whole.ours.mean_ms:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        *_load(system),
    ]


def _load(system: System) -> list[str]:
    return [
        f"{mean(step.imbalance for step in system.iterations):.2f}",
        f"{mean(step.bubble_ratio for step in system.iterations):.3f}",
    ]
