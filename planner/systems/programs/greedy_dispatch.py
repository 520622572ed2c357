"""The published dispatch: random greedy trials (Hydraulis, arXiv 2412.07894, Alg. 1).

A pipeline's time is estimated by the bound of Eq. 2–3, Σ(a·l² + b·l) + (pp − 1)·(a·m² + b·m), m its
longest sequence. The authors' code leaves c out of the trials; the bound of an assignment has
V_min·c + (pp − 1)·c more, with V_min = tokens/MaxLen rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def greedy_dispatch(
    classes: Sequence[PipelineClass],
    batch: Batch,
    *,
    trials: int = 100,
    seed: int = 0,
    order: Literal["random", "descending"] = "random",
) -> list[list[int]]:
    """Find the best of ``trials`` greedy assignments: positions per pipeline, class by class.

    Each trial takes the sequences in a random order, or longest first with ties in random order,
    and gives each to the pipeline that can hold it and is estimated to end first; on a tie to the
    first. Trials that leave a pipeline empty are rejected, as published, unless all do. All trials
    run side by side: O(sequences · trials · pipelines). ``ValueError`` when a sequence fits no
    pipeline.
    """
    if trials < 1:
        raise ValueError(f"trials must be 1 or more, not {trials}")
    lengths = np.asarray(batch.lengths, dtype=np.int64)
    estimate = _Estimate(classes, trials)
    if lengths.max() > estimate.capacity.max():
        raise ValueError(
            f"a sequence of {lengths.max()} tokens exceeds every pipeline's "
            f"{estimate.capacity.max()}"
            ". Use larger groups or a shorter context"
        )
    sequences = _orders(lengths, trials, seed, order)
    chosen = np.empty((trials, len(lengths)), dtype=np.int64)
    all_trials = np.arange(trials)
    for step in sequences.T:
        chosen[all_trials, step] = estimate.give(lengths[step])
    slowest = estimate.time.max(axis=1)
    rejected = (estimate.tokens == 0).any(axis=1)
    best = int(np.lexsort((slowest, rejected))[0])
    pipelines: list[list[int]] = [[] for _ in estimate.capacity]
    for position, pipeline in enumerate(chosen[best].tolist()):
        pipelines[pipeline].append(position)
    return pipelines


def dispatch_bound_ms(pipeline_class: PipelineClass, lengths: Sequence[int]) -> float:
    """Compute the bound of Eq. 2–3 (ms) on a pipeline with these sequences, 0 without any."""
    if not lengths:
        return 0.0
    work = [length * (pipeline_class.a * length + pipeline_class.b) for length in lengths]
    padded = sum(pipeline_class.pad(length) for length in lengths)
    overhead = (-(-padded // pipeline_class.capacity) + pipeline_class.pp - 1) * pipeline_class.c
    return sum(work) + (pipeline_class.pp - 1) * max(work) + overhead


class _Estimate:
    """The estimated time of every pipeline in every trial; arrays (trials, pipelines)."""

    def __init__(self, classes: Sequence[PipelineClass], trials: int) -> None:
        pipelines = [
            pipeline_class for pipeline_class in classes for _ in range(pipeline_class.count)
        ]
        self.a = np.array([pipeline_class.a for pipeline_class in pipelines])
        self.b = np.array([pipeline_class.b for pipeline_class in pipelines])
        self.bubbles = np.array([pipeline_class.pp - 1.0 for pipeline_class in pipelines])
        self.unit = np.array([pipeline_class.unit for pipeline_class in pipelines])
        self.capacity = np.array([pipeline_class.capacity for pipeline_class in pipelines])
        shape = (trials, len(pipelines))
        self.work = np.zeros(shape)
        self.longest = np.zeros(shape)
        self.tokens = np.zeros(shape, dtype=np.int64)
        self.time = np.zeros(shape)
        self._all_trials = np.arange(trials)

    def give(self, lengths: Ints) -> Ints:
        """Give each trial a sequence of these ``lengths`` (trials,); return whose it became."""
        tokens_each = lengths[:, None].astype(np.float64)
        added = tokens_each * (self.a * tokens_each + self.b)
        longest = np.maximum(self.longest, added)
        work = self.work + added
        time = work + self.bubbles * longest
        tokens = self.tokens + -(-lengths[:, None] // self.unit) * self.unit
        time[lengths[:, None] > self.capacity] = np.inf
        pipeline: Ints = time.argmin(axis=1)
        chosen = (self._all_trials, pipeline)
        for state, after in (
            (self.work, work),
            (self.longest, longest),
            (self.tokens, tokens),
            (self.time, time),
        ):
            state[chosen] = after[chosen]
        return pipeline


def _orders(lengths: Ints, trials: int, seed: int, order: Literal["random", "descending"]) -> Ints:
    """Choose the order of the sequences in each trial (trials, sequences)."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(np.arange(len(lengths)), (trials, 1)), axis=1)
    if order == "random":
        return shuffled
    longest_first = np.argsort(-lengths[shuffled], axis=1, kind="stable")
    return np.take_along_axis(shuffled, longest_first, axis=1)
