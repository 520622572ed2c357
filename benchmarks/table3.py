"""Models and clusters of the published comparison, against its static configurations.

Hydraulis (arXiv 2412.07894) section 8 and Table 3: LLaMA 7B, 13B and 32B, 100,000 tokens a step,
sequences up to 16K and 32K. Published: 1.32 to 2.66 times as fast as the baselines.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from benchmarks.settings import Data, markdown, published_schemes, published_sync
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison, mean_compute_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.sync.times import GivenSyncTimes
from seqplan.planner.workload import Workload

SETTINGS = (("7b", 8), ("7b", 16), ("13b", 16), ("13b", 32), ("32b", 32), ("32b", 64))
TOKENS, STEPS, SEED = 100_000, 20, 0
CONTEXTS = (16384, 32768)
OPTIONS = Options(("static", "megatron", "hotspa"))


def run(data: Sequence[Data]) -> None:
    """Print the ratios of every setting: forward and backward alone, and whole iterations."""
    for source in data:
        rows, notes = [], []
        for model, gpus in SETTINGS:
            profile = published_schemes(f"llama-{model}-a800-80gb")
            sync = published_sync(profile, gpus)
            none = GivenSyncTimes(0.0, sync.optimizer_ms, "no sync", 0.0, 0.0)
            for context in CONTEXTS:
                place = f"{model.upper()}, {gpus} GPUs, {context // 1024}K"
                workload = Workload(gpus, context, TOKENS)
                try:
                    free, whole = (
                        compare(
                            profile, workload, source.lengths, STEPS, e, seed=SEED, options=OPTIONS
                        )
                        for e in (none, sync)
                    )
                except Infeasible as error:
                    notes.append(f"{place}: {error}")
                    continue
                rows.append([place, *_ratios(free, whole)])
                notes += [
                    f"{place}: {system.name}: {system.description.partition(';')[0]}"
                    for system in whole.systems
                    if system.key in ("static", "megatron", "hotspa")
                ]
        print(f"### {source.name}: {STEPS} steps of {TOKENS:,} tokens (Table 3's configurations)\n")
        print("Their time over ours: forward and backward alone / whole iteration.\n")
        head = ["setting", "Megatron-like, varlen", "dense", "balanced", "HotSPa-like"]
        print(markdown([*head, "best static", "imbalance ours / Megatron-like"], rows) + "\n")
        print("\n".join(notes) + "\n")


def _ratios(free: Comparison, whole: Comparison) -> list[str]:
    cells = []
    for key in ("megatron", "megatron-dense", "megatron-balanced", "hotspa", "static"):
        alone, both = (
            next((s for s in comparison.systems if s.key == key), None)
            for comparison in (free, whole)
        )
        if alone is None or both is None:
            cells.append("—")
            continue
        compute = mean_compute_ms(alone) / mean_compute_ms(free.ours)
        cells.append(f"{compute:.2f} / {both.mean_ms / whole.ours.mean_ms:.2f}")
    load = [
        mean(step.imbalance for step in system.iterations)
        for system in free.systems
        if system.key in ("ours", "megatron")
    ]
    return [*cells, " / ".join(f"{value:.2f}" for value in load)]
