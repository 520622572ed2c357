"""Steps that a benchmark plans, and the time that this takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import ParamSpec, TypeVar

import numpy as np

from benchmarks.settings import Data
from seqplan import Batch, Plan, Workload
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.placement.fleet import Floats

P = ParamSpec("P")
Result = TypeVar("Result")


def time_cpu(call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    """Return a call's result and its CPU time (ms)."""
    began = time.process_time()
    result = call(*args, **kwargs)
    return result, (time.process_time() - began) * 1e3


def time_wall(call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    """Return a call's result and its wall time (ms)."""
    began = time.perf_counter()
    result = call(*args, **kwargs)
    return result, (time.perf_counter() - began) * 1e3


def draw_batches(data: Data, workload: Workload, steps: int, seed: int = 0) -> list[Batch]:
    """Draw the batches of some steps, as the planner of a job does."""
    return list(Sampler(data.lengths, workload.tokens, workload.max_len, seed).batches(steps))


@dataclass(frozen=True)
class PlannedSteps:
    """Plans of some steps, and the time of planning each (ms)."""

    plans: list[Plan]
    planning_ms: list[float]

    @property
    def compute_ms(self) -> float:
        """Mean forward and backward of a step (ms)."""
        return fmean(plan.predicted_ms for plan in self.plans)

    @property
    def sync_ms(self) -> float:
        """Mean sync of a step (ms)."""
        return fmean(plan.sync_ms or 0.0 for plan in self.plans)

    @property
    def iterations_ms(self) -> Floats:
        """Predicted iterations, sync included (ms)."""
        return np.array([plan.predicted_ms + (plan.sync_ms or 0.0) for plan in self.plans])

    @property
    def gaps(self) -> list[float]:
        """Optimality gap of each plan."""
        return [plan.gap for plan in self.plans]


def plan_steps(
    planner: Callable[[Batch], Plan],
    batches: Iterable[Batch],
    *,
    timed: Callable[[Callable[[Batch], Plan], Batch], tuple[Plan, float]] = time_cpu,
    repeats: int = 1,
) -> PlannedSteps:
    """Plan batches; the time of each is the least of its ``repeats``.

    Neighbors of a shared core double a time now and then.
    """
    plans, times = [], []
    for batch in batches:
        repeated = [timed(planner, batch) for _ in range(repeats)]
        plans.append(repeated[-1][0])
        times.append(min(ms for _, ms in repeated))
    return PlannedSteps(plans, times)


def count_sequences(batches: Sequence[Batch]) -> float:
    """Return the median number of sequences of a batch."""
    return median(len(batch.lengths) for batch in batches)
