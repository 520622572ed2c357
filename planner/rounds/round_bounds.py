"""What every plan in rounds costs at least, whatever its groups: how many rounds, and how long.

All are of one layout and reckoned at one stage: ``classes`` have the ranks of one stage, ``ranks``
are those of a stage, and the rounds go through ``stages`` of them one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.profiler.scheme_model import SchemeModel


def stage_class(model: SchemeModel) -> PipelineClass:
    """Return a group of a scheme as one stage of it: its costs, and the ranks of a stage."""
    return replace(PipelineClass.of(model, 1), pp=1, gpus=model.scheme.stage_gpus)


def in_stages_ms(rounds_ms: Sequence[float], stages: int) -> float:
    """Time a step of rounds: each lasts so long at a stage, and all go through ``stages``.

    Form S: Σ rounds and, to fill and drain, (stages − 1) times the longest.
    """
    return sum(rounds_ms) + (stages - 1) * max(rounds_ms, default=0.0)


def rounds_bound_ms(
    classes: Sequence[PipelineClass], batch: Batch, ranks: int, rounds: int, stages: int = 1
) -> float:
    """Compute a lower bound (ms) on every plan of at least ``rounds`` rounds.

    If a plan takes at most U, the round of a sequence, which may count once for each stage, takes
    at most U less an overhead for each other round, over the stages. That excludes groups that need
    longer. On those that remain, GPU-time Σ min_g gpus_g·work_g spreads over all ranks, and
    each round pays its overhead; filling and draining take (stages − 1) times the longest round,
    which is no shorter than the mean one and than any sequence alone. Of all numbers of rounds that
    there can be the least counts. The bound is the largest U at which this contradicts U.
    """
    overhead = min(pipeline_class.c for pipeline_class in classes)
    lengths, counts = batch.distinct, batch.multiplicity
    work = np.stack([pipeline_class.work_ms(lengths) for pipeline_class in classes])
    holds = np.stack(
        [pipeline_class.padded(lengths) <= pipeline_class.capacity for pipeline_class in classes]
    )
    sizes = np.array([[pipeline_class.gpus] for pipeline_class in classes], dtype=np.float64)
    alone = work + np.array([[pipeline_class.c] for pipeline_class in classes])
    numbers = np.arange(rounds, max(rounds, len(batch.lengths) if stages > 1 else rounds) + 1)

    def implied_ms(limit_ms: float) -> float:
        longest_ms = (limit_ms - (rounds - 1) * overhead) / stages
        feasible = holds & (alone <= longest_ms + 1e-9)
        area = np.where(feasible, sizes * work, inf).min(axis=0)
        spread = float(area @ counts) / ranks
        if stages == 1:
            return spread + rounds * overhead
        singly = float(np.where(feasible, alone, inf).min(axis=0).max())
        longest = np.maximum(singly, spread / numbers + overhead)
        return float((spread + numbers * overhead + (stages - 1) * longest).min())

    singly = float(np.where(holds, alone, inf).min(axis=0).max())
    low = stages * singly + (rounds - 1) * overhead
    high = max(low, implied_ms(inf)) * 2 + 1
    low = max(low, implied_ms(inf) * (1 - 1e-9))
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if implied_ms(middle) * (1 - 1e-9) >= middle:
            low = middle
        else:
            high = middle
    return low


def fewest_rounds(classes: Sequence[PipelineClass], batch: Batch, ranks: int) -> int:
    """Count the rounds that all tokens need at the best tokens a rank, and that long ones need."""
    per_rank = max(pipeline_class.capacity / pipeline_class.gpus for pipeline_class in classes)
    by_tokens = ceil(batch.tokens / (per_rank * ranks) - 1e-9)
    lengths, counts = batch.distinct, batch.multiplicity
    smallest = np.full(len(lengths), inf)  # ranks of the smallest group that holds a sequence
    for pipeline_class in classes:
        holds = pipeline_class.padded(lengths) <= pipeline_class.capacity
        # Two sequences above half a group's capacity cannot share it: count their ranks whole.
        alone = holds & (2 * pipeline_class.padded(lengths) > pipeline_class.capacity)
        smallest = np.minimum(
            smallest, np.where(alone, pipeline_class.gpus, np.where(holds, 0.0, inf))
        )
    by_groups = ceil(float(smallest @ counts) / ranks - 1e-9)
    return max(1, by_tokens, by_groups)
