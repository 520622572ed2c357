"""Bounds of steps whose sequences have work before the language model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.resources import ROUNDING
from seqplan.planner.placement.exchange_positions import list_whole_work_ms
from seqplan.planner.placement.fleet import PipelineClass

ROUNDS = 200
"""Changes of the weights; 400 raise the bound by less than 0.01 % (6 pipelines, 200 sequences)."""

FIRST_STEP = 0.5
"""Exponent of the first change of the weights; later ones are smaller."""


def bound_fleet_ms(classes: Sequence[PipelineClass], batch: Batch) -> float:
    """Bound every placement on these pipelines (ms); all are without stages.

    With weights y_k of which Σ count_k·y_k = 1, the slowest pipeline is at least the weighted mean
    of all, so at least Σ_sequences min_k y_k·work_k, whatever the weights. Those of classes that
    take more than their part are raised, step by step. And each sequence ends somewhere.
    """
    work = list_whole_work_ms(classes, batch)
    counts = np.array([k.count for k in classes], dtype=np.float64)
    alone_ms = float(work.min(axis=0).max())
    held = np.where(np.isfinite(work), work, 0.0).sum(axis=1)
    weights = 1.0 / np.maximum(held, 1e-9)
    best = 0.0
    for number in range(ROUNDS):
        weights /= weights @ counts
        priced = weights[:, None] * work
        chosen = priced.argmin(axis=0)
        best = max(best, float(priced[chosen, np.arange(len(chosen))].sum()))
        taken = np.bincount(chosen, work[chosen, np.arange(len(chosen))], minlength=len(classes))
        mean = taken.sum() / counts.sum()
        share = np.clip(taken / counts / mean, 1e-3, 1e3)
        weights = weights * share ** (FIRST_STEP / (1 + number / 4))
    return max(best, alone_ms) * (1 - ROUNDING)


def bound_gpus_ms(classes: Sequence[PipelineClass], batch: Batch, gpus: int) -> float:
    """Bound every plan of classes without stages on ``gpus`` GPUs by GPU-time (ms)."""
    sizes = np.array([[float(k.gpus)] for k in classes])
    gpu_ms = (sizes * list_whole_work_ms(classes, batch)).min(axis=0).sum()
    return float(gpu_ms) / gpus * (1 - ROUNDING)
