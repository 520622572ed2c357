"""How evenly ranks are loaded, ours and Megatron-like, and where ours are not.

Published (Hydraulis, arXiv 2412.07894, section 8): 0.36 to 0.65 for Megatron, 0.02 to 0.10 for
Hydraulis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

from benchmarks.settings import PROFILE, Data, markdown, published_schemes, workload
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.sync.times import NO_SYNC

GPUS, STEPS, SEED = 64, 20, 0
CONTEXTS = (32768, 16384)
OPTIONS = replace(Options(), systems=("megatron",))
ALONE = 0.99
"""A step of which the longest sequence alone takes this share is bound by it."""


def run(data: Sequence[Data]) -> None:
    """Print imbalances, ours apart for steps that their longest sequence bounds."""
    profile = published_schemes()
    rows = []
    for source in data:
        for context in CONTEXTS:
            where = workload(GPUS, context)
            comparison = compare(
                profile, where, source.lengths, STEPS, NO_SYNC, seed=SEED, options=OPTIONS
            )
            classes = [
                PipelineClass.from_model(model, 1) for model in where.models(profile).values()
            ]
            bound: list[float] = []
            others: list[float] = []
            for step in comparison.ours.iterations:
                least = single_bound_ms(classes, Batch.from_lengths([step.longest]))
                part = bound if least >= ALONE * step.compute_ms else others
                part.append(step.imbalance)
            theirs = [step.imbalance for step in comparison.systems[1].iterations]
            rows.append(
                [
                    source.name,
                    f"{context:,}",
                    _spread([*bound, *others]),
                    f"{len(bound)} of {STEPS}",
                    _spread(bound),
                    _spread(others),
                    _spread(theirs),
                ]
            )
    print(f"### Imbalance of the ranks: {PROFILE}, {GPUS} GPUs, no sync weighed\n")
    print("Median / mean / largest over the steps, (slowest − fastest) over the fastest rank.\n")
    head = ["lengths", "context", "ours", "bound by their longest sequence", "there"]
    print(markdown([*head, "elsewhere", "Megatron-like, varlen"], rows) + "\n")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "—"
    return f"{median(values):.3f} / {mean(values):.3f} / {max(values):.3f}"
