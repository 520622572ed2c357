"""How measured schemes differ from a profile, in a form that holds for those not measured, too.

One factor, or an overhead by the ranks of context parallelism: a trainer that launches each kernel
in time pays for every micro-batch and every step of a ring, whatever the tokens are. A factor would
hide that wide groups cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.latency import Latency
from seqplan.plans.scheme import Scheme

ROUNDS = 20
"""Of least squares, each weighing samples by the residuals of the one before."""

ROBUST_SCALE = 0.05
"""Relative residual from which a sample weighs less."""

BETTER = 0.8
"""Share of the median error of other forms that this form must reach to be taken."""

DISAGREEMENT = 0.1
"""Factors of measured schemes that are further apart than this disagree."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DegreeTimes:
    """Samples of one scheme, (samples,) each.

    ``predicted`` and ``measured`` ms, of ``predicted`` the part ``attention`` that grows with the
    square of lengths, and micro-batches.
    """

    scheme: Scheme
    predicted: Floats
    attention: Floats
    micro_batches: Floats
    measured: Floats

    def select(self, places: NDArray[np.int64]) -> DegreeTimes:
        """Return some of the samples."""
        columns = (self.predicted, self.attention, self.micro_batches, self.measured)
        return DegreeTimes(self.scheme, *(column[places] for column in columns))


@dataclass(frozen=True, slots=True)
class DegreeOverhead:
    """``factor`` of all times, and ms a micro-batch: ``fixed_ms``, ``rank_ms`` a further rank.

    Ranks are those of Ulysses and ring.
    """

    factor: float
    fixed_ms: float
    rank_ms: float

    def correct(self, latency: Latency, scheme: Scheme) -> Latency:
        """Return the coefficients of a scheme with the overhead."""
        scaled = latency.scale(self.factor)
        return replace(scaled, c=scaled.c + self.fixed_ms + (scheme.sp - 1) * self.rank_ms)

    def __str__(self) -> str:
        return (
            f"times {self.factor:.3f}, and {self.fixed_ms:.3g} ms a micro-batch with "
            f"{self.rank_ms:.3g} ms a further rank of ulysses·ring"
        )


@dataclass(frozen=True, slots=True)
class CommonFactor:
    """How much slower the measured schemes are than predicted, as one factor.

    ``factor``: the geometric mean over them of the new coefficients' time over the old ones', for
    the micro-batches measured; ``least`` and ``most`` of them.
    """

    factor: float
    least: float
    most: float

    @property
    def disagreement(self) -> str:
        """A clause if the schemes disagree; empty if they do not."""
        if self.most / self.least - 1 <= DISAGREEMENT:
            return ""
        return f", which disagree ({self.least:.3f} to {self.most:.3f})"


def split_halves(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw places of samples to fit, and of those held out; each time the same.

    Every second one would be of the same place in each plan.
    """
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[: (count + 1) // 2]), np.sort(order[(count + 1) // 2 :])


def find_overhead(by_scheme: Mapping[Scheme, DegreeTimes], least: int) -> DegreeOverhead | None:
    """Find the overhead that predicts held-out samples clearly better than factors; None without.

    Than one factor, and than one of attention and another of all else: schemes of many ranks run
    long sequences, so that slower attention looks like an overhead of their ranks. Of schemes with
    ``least`` samples or more, of two or more degrees of ulysses·ring; half of the samples are held
    out.
    """
    samples = [times for _, times in sorted(by_scheme.items()) if len(times.measured) >= least]
    if len({times.scheme.sp for times in samples}) < 2:
        return None
    halves = [split_halves(len(times.measured)) for times in samples]
    made_from = [times.select(half) for times, (half, _) in zip(samples, halves, strict=True)]
    held_out = [times.select(half) for times, (_, half) in zip(samples, halves, strict=True)]
    forms: tuple[Columns, ...] = (_list_factor, _list_work, _list_overhead)
    solved = {columns: _solve(columns, made_from) for columns in forms}
    errors = {columns: _find_error(columns, solved[columns], held_out) for columns in forms}
    factor, fixed_ms, rank_ms = solved[_list_overhead]
    rival = min(errors[_list_factor], errors[_list_work])
    if not rank_ms or errors[_list_overhead] > BETTER * rival:
        return None
    return DegreeOverhead(factor, fixed_ms, rank_ms)


Columns = Callable[[DegreeTimes], Floats]
"""Makes the columns of a form, (samples, coefficients), which times (ms) are linear in."""


def _list_factor(times: DegreeTimes) -> Floats:
    return times.predicted[:, None]


def _list_work(times: DegreeTimes) -> Floats:
    return np.stack([times.attention, times.predicted - times.attention], axis=1)


def _list_overhead(times: DegreeTimes) -> Floats:
    further = times.micro_batches * (times.scheme.sp - 1.0)
    return np.stack([times.predicted, times.micro_batches, further], axis=1)


def _solve(columns: Columns, samples: Sequence[DegreeTimes]) -> list[float]:
    """Fit measured times by non-negative least squares of relative errors.

    Disturbed samples weigh less.
    """
    from scipy.optimize import nnls  # half a second, which planning does not wait for

    matrix = np.concatenate([columns(times) / times.measured[:, None] for times in samples])
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(len(matrix))
    solution = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        solution = nnls(matrix / scale * weights[:, None], weights)[0] / scale
        residuals = matrix @ solution - 1
        weights = (1 + (residuals / ROBUST_SCALE) ** 2) ** -0.25
    return [float(value) for value in solution]


def _find_error(
    columns: Columns, coefficients: Sequence[float], samples: Sequence[DegreeTimes]
) -> float:
    """Return the mean over schemes of their median errors, so that each counts equally."""
    errors = [
        np.median(np.abs(columns(times) @ np.array(coefficients) / times.measured - 1))
        for times in samples
        if len(times.measured)
    ]
    return float(np.mean(errors))
