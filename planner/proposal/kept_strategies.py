"""The few strategies that serve a data set best together, and how each does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqplan.planner.proposal.batch_times import BatchTimes
from seqplan.plans.scheme import Strategy


@dataclass(frozen=True)
class Proposed:
    """A kept strategy: ``expected_ms`` over the judged batches it can run, and how often it won.

    ``runs``: share of the judged batches it can run; ``wins``: share on which it is the best kept.
    """

    strategy: Strategy
    max_sequence: int
    expected_ms: float
    runs: float
    wins: float


@dataclass(frozen=True, eq=False)
class TimedStrategy:
    """A strategy with its time on each batch (ms); infinite if it does not fit."""

    strategy: Strategy
    max_sequence: int
    times_ms: npt.NDArray[np.float64]


def refine(timed: TimedStrategy, judged: Sequence[BatchTimes]) -> TimedStrategy:
    """Return a strategy with its exact times."""
    for one in judged:
        one.refine(timed.strategy)
    return replace(timed, times_ms=np.array([one.time_ms(timed.strategy) for one in judged]))


def keep_best(timed: Sequence[TimedStrategy], max_len: int, most_kept: int) -> list[TimedStrategy]:
    """Keep the strategies that serve best together."""
    holds = [entry.max_sequence >= max_len for entry in timed]
    return [timed[i] for i in _keep(np.array([t.times_ms for t in timed]), holds, most_kept)]


def describe_kept(kept: Sequence[TimedStrategy]) -> tuple[Proposed, ...]:
    """Describe kept strategies: mean time, and how often each runs and is the best."""
    winner = np.array([entry.times_ms for entry in kept]).argmin(axis=0)
    proposed = []
    for place, entry in enumerate(kept):
        runs = np.isfinite(entry.times_ms)
        proposed.append(
            Proposed(
                entry.strategy,
                max_sequence=entry.max_sequence,
                expected_ms=float(np.mean(entry.times_ms[runs])) if runs.any() else float("nan"),
                runs=float(runs.mean()),
                wins=float((winner == place).mean()),
            )
        )
    return tuple(proposed)


def _keep(times: npt.NDArray[np.float64], holds: Sequence[bool], most_kept: int) -> list[int]:
    """Choose by greedy k-median the strategies whose best per batch has the least mean.

    One of them holds max_len, if any does. Stops early when a further strategy gains less than
    0.01 %.
    """
    chosen: list[int] = []
    best = np.full(times.shape[1], np.inf)
    penalty = 10 * float(times[np.isfinite(times)].max()) if np.isfinite(times).any() else 1.0
    capped = np.minimum(times, penalty)
    while len(chosen) < min(most_kept, len(times)):
        means = np.minimum(best, capped).mean(axis=1)
        best_next = int(means.argmin())
        if chosen and means[best_next] > best.mean() * (1 - 1e-4):
            break
        chosen.append(best_next)
        best = np.minimum(best, capped[best_next])
    if not any(holds[i] for i in chosen):
        holding = [i for i in range(len(times)) if holds[i]]
        if holding:
            chosen = [*chosen[: most_kept - 1], min(holding, key=lambda i: float(capped[i].mean()))]
    return chosen
