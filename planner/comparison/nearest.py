"""The system closest to our plans, and by how much they are faster, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.comparison.results import System
from seqplan.plans.percent import percent

OUR_SYSTEMS = frozenset({"ours", "one-layout", "regrouping", "one-strategy", "hydraulis-balanced"})
"""Systems that need our planner: our plans, parts of them, and plans of strategies of others."""

LEAST_STEPS = 16
"""Steps that an interval needs: resampling fewer shows too little of how batches differ."""

RESAMPLES, SEED, CONFIDENCE = 4000, 0, 0.95
"""Of the bootstrap; the seed is fixed, so that the same steps give the same interval."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A system that our plans are compared with.

    ``speedup``: its mean iteration over ours; ``interval``: 95 % of it over other steps of the same
    data, None for fewer than ``LEAST_STEPS``; ``static``: the strategy that it keeps, if it does.
    """

    key: str
    name: str
    speedup: float
    interval: tuple[float, float] | None
    steps: int
    static: str | None = None

    @property
    def full_name(self) -> str:
        """Add the strategy to the name of a system that keeps one."""
        return self.name if self.static is None else f"{self.name} ({self.static})"

    @property
    def certain(self) -> bool:
        """Whether our plans are faster at the interval's lower end, or at all without one."""
        return (self.speedup if self.interval is None else self.interval[0]) > 1

    @property
    def interval_text(self) -> str:
        """Write the interval, or why there is none."""
        if self.interval is None:
            few = "1 step" if self.steps == 1 else f"{self.steps} steps"
            return f"no interval: {few}; {LEAST_STEPS} or more give one"
        low, high = (f"{end:.2f}" for end in self.interval)
        if low == high:
            low, high = (f"{end:.4f}" for end in self.interval)
        if low == high:
            return f"no interval: {self.steps} steps that hardly differ"
        return f"{percent(CONFIDENCE, 0)} interval {low} to {high} over {self.steps} steps"

    @property
    def text(self) -> str:
        """Write the speed-up with its interval."""
        return f"{self.speedup:.2f}× ({self.interval_text})"


def find_nearest(systems: Sequence[System]) -> System | None:
    """Find the fastest of ``systems`` that does not need our planner; of equal ones the first."""
    others = (system for system in systems if system.key not in OUR_SYSTEMS)
    return min(others, key=lambda system: round(system.mean_ms, 6), default=None)


def nearest_rival(systems: Sequence[System]) -> Rival | None:
    """Compare ``systems[0]``, ours, with the nearest rival; None without one."""
    nearest = find_nearest(systems)
    return None if nearest is None else measure_speedup(nearest, systems[0])


def measure_speedup(nearest: System, ours: System) -> Rival:
    """Compare ours with another system on the same steps."""
    steps = len(ours.iterations)
    pairs = np.array(
        [
            (theirs.total_ms, our.total_ms)
            for theirs, our in zip(nearest.iterations, ours.iterations, strict=True)
        ]
    )
    interval = None
    if steps >= LEAST_STEPS:
        drawn = np.random.default_rng(SEED).integers(0, steps, (RESAMPLES, steps))
        theirs_ms, ours_ms = pairs[drawn].sum(axis=1).T
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(theirs_ms / ours_ms, (tail, 1 - tail))
        interval = (float(low), float(high))
    speedup = nearest.mean_ms / ours.mean_ms
    return Rival(nearest.key, nearest.name, speedup, interval, steps, nearest.static)
