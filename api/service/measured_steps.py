"""Decide from measured steps whether costs are to be corrected, and whether that was a gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.fit.calibration import find_stated_error, measure_calibration_error
from seqplan.costs.fit.latency_fit import Observed
from seqplan.costs.fit.measurements import Measurable, measurable
from seqplan.costs.fit.refit import RefittedProfile, SchemeTimes, refit_profile
from seqplan.costs.profile import Profile
from seqplan.planner.balance.slow_ranks import CHANGE, find_usual, list_usual_ms
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

LEAST_LOSS = 0.02
"""Share by which steps have to become slower, at least, before a revision is undone."""

_OTHER_SPEEDS = 0.2
"""Share by which a rank's speed, compared with the others', changes if the plan is not why."""

_ERRORS = 2.0
"""Standard errors of a difference of medians that count as noise."""

_MEDIAN_ERROR, _MAD_TO_SIGMA = 1.2533, 1.4826
"""Standard error of a median over that of a mean; σ of a normal distribution over its MAD."""


@dataclass(frozen=True)
class MeasuredStep:
    """A step that all ranks with work have measured.

    ``profile``: digest of the profile that predicted it; ``took_ms`` [ranks]: computing times, 0
    for a rank without work; ``rank_ms`` [ranks]: predicted, without factors of slow ranks;
    ``squares`` and ``tokens``: Σl² and Σl of its sequences.
    """

    step: int
    profile: str
    took_ms: NDArray[np.float64]
    rank_ms: NDArray[np.float64]
    squares: float
    tokens: float
    pipelines: tuple[Measurable, ...]

    @classmethod
    def from_plan(cls, plan: Plan, by_rank: Mapping[int, float]) -> MeasuredStep | None:
        """Match a plan with its ranks' times (ms); None if some are missing."""
        rank_ms = list_usual_ms(plan)
        took_ms = np.zeros(plan.world_size)
        for rank in np.flatnonzero(rank_ms).tolist():
            if rank not in by_rank:
                return None
            took_ms[rank] = by_rank[rank]
        lengths = np.array(plan.lengths, dtype=np.float64)
        squares, tokens = float(lengths @ lengths), float(lengths.sum())
        profile = plan.provenance.profile
        return cls(plan.step, profile, took_ms, rank_ms, squares, tokens, measurable(plan))


def find_correction(profile: Profile, steps: Sequence[MeasuredStep]) -> RefittedProfile | None:
    """Refit a profile to steps planned by it; None while it predicts them within its error.

    Slow ranks are no property of a scheme: their times are divided by their factors in these steps.
    """
    slowdown = _list_factors(steps)
    by_scheme: dict[Scheme, list[Observed]] = {}
    times: dict[Scheme, tuple[list[float], list[float]]] = {}
    for step in steps:
        for pipeline in step.pipelines:
            ranks = pipeline.ranks
            took_ms = max(float(step.took_ms[rank]) / slowdown[rank] for rank in ranks)
            by_scheme.setdefault(pipeline.scheme, []).append(pipeline.observe(took_ms))
            predicted, took = times.setdefault(pipeline.scheme, ([], []))
            predicted.append(pipeline.predicted_ms)
            took.append(took_ms)
    for scheme, (predicted, took) in times.items():
        stated = find_stated_error(profile.by_scheme[scheme])
        if measure_calibration_error(scheme, predicted, took, stated).warning is not None:
            refitted = refit_profile(profile, by_scheme)
            return None if refitted.common is None else refitted
    return None


def _list_ratios(steps: Sequence[MeasuredStep]) -> NDArray[np.float64]:
    """Return each rank's median time over its predicted one; NaN for a rank without work."""
    took = np.array([step.took_ms for step in steps])
    predicted = np.array([step.rank_ms for step in steps])
    ratios = np.full(took.shape[1], np.nan)
    for rank, worked in enumerate((took > 0).T):
        if worked.any():
            ratios[rank] = np.median(took[worked, rank] / predicted[worked, rank])
    return ratios


def _list_factors(steps: Sequence[MeasuredStep]) -> list[float]:
    """Return each rank's time over the usual one, at least 1."""
    if not steps:
        return []
    ratios = _list_ratios(steps)
    factors = ratios / find_usual(ratios)
    return [float(factor) if factor > 1 + CHANGE else 1.0 for factor in factors]


def measure_loss(
    before: Sequence[MeasuredStep], after: Sequence[MeasuredStep], profile: Profile
) -> tuple[float, float] | None:
    """Return the share by which steps became slower, and that of noise.

    A step takes as long as its slowest rank; its work is a·Σl² + b·Σl of the smallest scheme. If
    the median rank takes another time than before for the same scheme and work, that is no plan's
    doing and is left out. None if a rank became slower than the others: no plan does that either,
    and it hides what the plan does.
    """
    factors = [np.array(_list_factors(steps)) for steps in (before, after)]
    if (factors[1] / factors[0]).max() > 1 + _OTHER_SPEEDS:
        return None
    latency = min(profile.schemes, key=lambda entry: entry.scheme).latency
    ratios = [
        np.array([step.took_ms.max() / _count_work(step, latency) for step in steps])
        for steps in (before, after)
    ]
    medians = [float(np.median(ratio)) for ratio in ratios]
    errors = [
        _MEDIAN_ERROR * _MAD_TO_SIGMA * np.median(np.abs(ratio / median - 1)) / len(ratio) ** 0.5
        for ratio, median in zip(ratios, medians, strict=True)
    ]
    noise = _ERRORS * float(np.hypot(*errors))
    shared = _measure_shared_change(before, after, profile)
    return medians[1] / medians[0] / shared - 1, max(LEAST_LOSS, noise)


def _measure_shared_change(
    before: Sequence[MeasuredStep], after: Sequence[MeasuredStep], profile: Profile
) -> float:
    """Return the median rank's time for the same work over that before; 1 if it is not known.

    The work of a rank is predicted by one profile. If the steps are of two, only pipelines of
    schemes that a rank ran before and after count, predicted by ``profile``.
    """
    if len({step.profile for step in (*before, *after)}) == 1:
        changes = _list_ratios(after) / _list_ratios(before)
    else:
        medians = [_list_scheme_ratios(steps, profile) for steps in (before, after)]
        changes = np.array([medians[1].get(key, np.nan) / ms for key, ms in medians[0].items()])
    known = changes[np.isfinite(changes)]
    return float(np.median(known)) if len(known) else 1.0


def _list_scheme_ratios(
    steps: Sequence[MeasuredStep], profile: Profile
) -> dict[tuple[int, Scheme], float]:
    """Return each rank's median time over the predicted one, by scheme."""
    ratios: dict[tuple[int, Scheme], list[float]] = {}
    for step in steps:
        for pipeline in step.pipelines:
            entry = profile.by_scheme.get(pipeline.scheme)
            if entry is None or bool(pipeline.by_mode) != bool(entry.modes):
                continue
            if not pipeline.by_mode.keys() <= entry.modes.keys():
                continue
            sample = pipeline.observe(float(step.took_ms.max()))
            predicted = float(SchemeTimes.from_scheme(entry).predict([sample])[0])
            for rank in pipeline.ranks:
                ratio = float(step.took_ms[rank]) / predicted
                ratios.setdefault((rank, pipeline.scheme), []).append(ratio)
    return {key: float(np.median(of)) for key, of in ratios.items()}


def _count_work(step: MeasuredStep, latency: Any) -> float:
    return float(latency.a * step.squares + latency.b * step.tokens) or 1.0
