"""Slow ranks from their computing times: how many times as long each takes as the others."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from seqplan.planner.argument_checks import check_list, read_whole_number
from seqplan.planner.placement.fleet import Floats
from seqplan.planner.placement.slowdown import MOST, Slowdown
from seqplan.planner.workload import MOST_GPUS
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import predict_rank_times

WINDOW = 32
"""Steps whose median counts: with 5 % noise it is off by 1.1 % (standard error)."""

CHANGE = 0.05
"""Share by which two windows in a row have to differ from a factor before it changes."""

EVEN, UNEVEN = 0.005, 0.05
"""Measured times that spread so little on work that spreads so much include waiting."""


class SlowRanks:
    """Finds the factors of ``slowdown`` from the times that ranks compute, step by step.

    A rank's factor is the median, over two windows of ``WINDOW`` steps, of its measured time over
    its predicted one, divided by that of the median rank (``find_usual``); it changes only if both
    windows differ from it by more than ``CHANGE`` in the same direction; a rank without work keeps
    its factor. Times are to be of computing, without waits: ranks that wait for each other all
    look equally slow (``waits_included``). Same times, same factors.
    """

    def __init__(self, ranks: int, slow: Sequence[tuple[int, float | None]] = ()) -> None:
        """Start with all ranks of the usual speed but ``slow`` ones (rank, factor; None: lost)."""
        ranks = read_whole_number("ranks", ranks, MOST_GPUS)
        known: list[float | None] = [1.0] * ranks
        for rank, factor in slow:
            if not 0 <= rank < ranks:
                raise ValueError(f"slow: rank {rank}: ranks are 0 to {ranks - 1}. Name one")
            known[rank] = factor
        checked = Slowdown.from_value(known, ranks).factors
        self._factors = np.array([1.0 if factor is None else factor for factor in checked])
        self._lost = np.array([factor is None for factor in checked])
        self._window: list[Floats] = []
        self._spreads: list[tuple[float, float]] = []
        self._before: Floats | None = None
        self.waits_included = False
        """Whether times in the last window were equal on all ranks though their work was not."""

    @property
    def slowdown(self) -> tuple[float | None, ...]:
        """Return the factors, to three digits: 1 for the usual speed, None for a lost rank.

        At most ``MOST``, which plans take.
        """
        factors = np.clip(self._factors, 1.0, MOST).round(3).tolist()
        pairs = zip(factors, self._lost.tolist(), strict=True)
        return tuple(None if lost else factor for factor, lost in pairs)

    def observe(
        self, rank_ms: Sequence[float], measured_ms: Sequence[float | None]
    ) -> tuple[float | None, ...]:
        """Take the times of a step, and return the factors from now on.

        ``rank_ms``: predicted computing time of each rank (``Balanced.rank_ms``), with the factors
        that the step was planned with; ``measured_ms``: measured, None for a rank that is lost, 0
        for one without work. ``ValueError`` for another number of ranks and for values that are no
        times, ``TypeError`` for those that are no numbers.
        """
        ranks = len(self._factors)
        for name, times in (("rank_ms", rank_ms), ("measured_ms", measured_ms)):
            check_list(name, times, "milliseconds, one for each rank")
            if len(times) != ranks:
                raise ValueError(f"{name} has {len(times)} times for {ranks} ranks. Give one each")
            for rank, ms in enumerate(times):
                if ms is None:
                    continue
                if isinstance(ms, bool) or not isinstance(ms, int | float | np.number):
                    raise TypeError(f"{name} of rank {rank}: {ms!r}. Give milliseconds as a number")
                if not (isfinite(ms) and ms >= 0):
                    raise ValueError(f"{name} of rank {rank}: {ms}. Give milliseconds from 0 on")
        self._lost = np.array([ms is None for ms in measured_ms])
        measured = np.array([np.nan if not ms else float(ms) for ms in measured_ms])
        predicted = np.array([np.nan if not ms else float(ms) for ms in rank_ms])
        # Ratios to the usual speed: the prediction has the factors already.
        ratios = measured / predicted * self._factors
        if np.isfinite(ratios).sum() >= 2:
            self._window.append(ratios / np.nanmedian(ratios))
            seen = np.isfinite(ratios)
            self._spreads.append((_spread(measured[seen]), _spread(predicted[seen])))
        if len(self._window) == WINDOW:
            self._end_window()
        return self.slowdown

    def _end_window(self) -> None:
        window = np.array(self._window)
        measured, predicted = np.median(self._spreads, axis=0)
        self.waits_included = bool(measured < EVEN and predicted > UNEVEN)
        with np.errstate(invalid="ignore"):
            both = window if self._before is None else np.concatenate([self._before, window])
            medians = _medians(window)
            if self._before is not None and not self.waits_included:
                earlier = _medians(self._before)
                slower = np.minimum(medians, earlier) > self._factors * (1 + CHANGE)
                faster = np.maximum(medians, earlier) < self._factors * (1 - CHANGE)
                factors = np.maximum(_medians(both), 1.0)
                self._factors = np.where(slower | faster, factors, self._factors)
        self._before, self._window, self._spreads = window, [], []


def list_usual_ms(plan: Plan) -> Floats:
    """Return the times that a plan predicts for its ranks (ms), without factors.

    As of ``predict_rank_times``, in an array; ranks of slow pipelines have one each.
    """
    usual_ms: Floats = np.zeros(plan.world_size)
    for rank, time_ms in predict_rank_times(plan).items():
        usual_ms[rank] = time_ms
    for pipeline in plan.pipelines:
        usual_ms[list(pipeline.ranks)] /= pipeline.slowdown
    return usual_ms


def find_usual(ratios: Floats) -> float:
    """Return the ratio of ranks of the usual speed: the median, of two in the middle the faster.

    With two groups of which one is slow that is the other. NaN: of a rank without times.
    """
    return float(np.nanquantile(ratios, 0.5, method="lower"))


def _medians(window: Floats) -> Floats:
    """Return the median of each rank over the usual one; NaN without times."""
    medians: Floats = np.full(window.shape[1], np.nan)
    for rank in range(window.shape[1]):
        seen = window[np.isfinite(window[:, rank]), rank]
        if len(seen):
            medians[rank] = np.median(seen)
    return medians / find_usual(medians)


def _spread(times: Floats) -> float:
    return float((times.max() - times.min()) / times.mean())
