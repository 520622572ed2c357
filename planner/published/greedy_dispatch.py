"""The published dispatch: random greedy trials (Hydraulis, arXiv 2412.07894, Alg. 1).

A pipeline's time is estimated by the bound of Eq. 2–3, Σ(a·l² + b·l) + (pp − 1)·(a·m² + b·m), m its
longest sequence. The authors' code leaves c out here; ``count_overhead`` adds V_min·c + (pp − 1)·c
with V_min = tokens/MaxLen rounded up.
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
    count_overhead: bool = False,
) -> list[list[int]]:
    """Positions per pipeline, class by class, of the best of ``trials`` greedy assignments.

    Each trial takes the sequences in a random order, or longest first with ties in random order,
    and gives each to the pipeline that can hold it and is estimated to end first; on a tie to the
    first. Trials that leave a pipeline empty are rejected, as published, unless all do. All trials
    run side by side: O(sequences · trials · pipelines). ``ValueError`` when a sequence fits no
    pipeline.
    """
    if trials < 1:
        raise ValueError(f"trials must be 1 or more, not {trials}")
    lengths = np.asarray(batch.lengths, dtype=np.int64)
    estimate = _Estimate(classes, trials, count_overhead)
    if lengths.max() > estimate.capacity.max():
        raise ValueError(
            f"a sequence of {lengths.max()} tokens exceeds every pipeline's "
            f"{estimate.capacity.max()}"
        )
    sequences = _orders(lengths, trials, seed, order)
    chosen = np.empty((trials, len(lengths)), dtype=np.int64)
    every = np.arange(trials)
    for step in sequences.T:
        chosen[every, step] = estimate.give(lengths[step])
    slowest = estimate.time.max(axis=1)
    rejected = (estimate.tokens == 0).any(axis=1)
    best = int(np.lexsort((slowest, rejected))[0])
    pipelines: list[list[int]] = [[] for _ in estimate.capacity]
    for position, pipeline in enumerate(chosen[best].tolist()):
        pipelines[pipeline].append(position)
    return pipelines


def dispatch_bound_ms(
    item: PipelineClass, lengths: Sequence[int], *, count_overhead: bool = True
) -> float:
    """The bound of Eq. 2–3 (ms) on a pipeline with these sequences, 0 without any."""
    if not lengths:
        return 0.0
    work = [length * (item.a * length + item.b) for length in lengths]
    time = sum(work) + (item.pp - 1) * max(work)
    if count_overhead:
        padded = sum(item.pad(length) for length in lengths)
        time += (-(-padded // item.capacity) + item.pp - 1) * item.c
    return time


class _Estimate:
    """The estimated time of every pipeline in every trial; arrays (trials, pipelines)."""

    def __init__(self, classes: Sequence[PipelineClass], trials: int, count_overhead: bool) -> None:
        each = [item for item in classes for _ in range(item.count)]
        self.a = np.array([item.a for item in each])
        self.b = np.array([item.b for item in each])
        self.c = np.array([item.c if count_overhead else 0.0 for item in each])
        self.bubbles = np.array([item.pp - 1.0 for item in each])
        self.unit = np.array([item.unit for item in each])
        self.capacity = np.array([item.capacity for item in each])
        shape = (trials, len(each))
        self.work = np.zeros(shape)
        self.longest = np.zeros(shape)
        self.tokens = np.zeros(shape, dtype=np.int64)
        self.time = np.zeros(shape)
        self._every = np.arange(trials)

    def give(self, lengths: Ints) -> Ints:
        """Give each trial a sequence of these ``lengths`` (trials,); the pipelines chosen."""
        of = lengths[:, None].astype(np.float64)
        added = of * (self.a * of + self.b)
        longest = np.maximum(self.longest, added)
        work = self.work + added
        time = work + self.bubbles * longest
        tokens = self.tokens + -(-lengths[:, None] // self.unit) * self.unit
        if self.c.any():
            time += self.c * (-(-tokens // self.capacity) + self.bubbles)
        time[lengths[:, None] > self.capacity] = np.inf
        pipeline: Ints = time.argmin(axis=1)
        at = (self._every, pipeline)
        for state, after in (
            (self.work, work),
            (self.longest, longest),
            (self.tokens, tokens),
            (self.time, time),
        ):
            state[at] = after[at]
        return pipeline


def _orders(lengths: Ints, trials: int, seed: int, order: Literal["random", "descending"]) -> Ints:
    """The order of the sequences in each trial (trials, sequences)."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(np.arange(len(lengths)), (trials, 1)), axis=1)
    if order == "random":
        return shuffled
    longest_first = np.argsort(-lengths[shuffled], axis=1, kind="stable")
    return np.take_along_axis(shuffled, longest_first, axis=1)
