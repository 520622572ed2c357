"""Time that a trainer adds to a profile's by the ranks of context parallelism.

A trainer that launches each kernel in time pays for every micro-batch and every step of a ring,
whatever the tokens are. One factor over all schemes would hide that wide groups cost more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""Share of the median error of one factor that this form must reach to be taken."""


@dataclass(frozen=True, slots=True)
class DegreeTimes:
    """Samples of one scheme: predicted and measured ms, and micro-batches, (samples,) each."""

    scheme: Scheme
    predicted: NDArray[np.float64]
    micro_batches: NDArray[np.float64]
    measured: NDArray[np.float64]

    def select(self, places: slice) -> DegreeTimes:
        """Return some of the samples."""
        parts = (self.predicted[places], self.micro_batches[places], self.measured[places])
        return DegreeTimes(self.scheme, *parts)


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

    def predict(self, times: DegreeTimes) -> NDArray[np.float64]:
        """Compute the time of samples (ms)."""
        added = self.fixed_ms + (times.scheme.sp - 1) * self.rank_ms
        return self.factor * times.predicted + times.micro_batches * added

    def __str__(self) -> str:
        return (
            f"times {self.factor:.3f}, and {self.fixed_ms:.3g} ms a micro-batch with "
            f"{self.rank_ms:.3g} ms a further rank of ulysses·ring"
        )


def fit_degree_overhead(samples: Sequence[DegreeTimes]) -> DegreeOverhead | None:
    """Find the overhead that predicts held-out samples better than one factor; None if none does.

    Of schemes of two or more degrees of ulysses·ring. Every second sample is held out.
    """
    if len({times.scheme.sp for times in samples}) < 2:
        return None
    made_from = [times.select(slice(0, None, 2)) for times in samples]
    held_out = [times.select(slice(1, None, 2)) for times in samples]
    overhead = _solve(made_from)
    ratios = [times.measured / times.predicted for times in made_from]
    factor = DegreeOverhead(float(np.median(np.concatenate(ratios))), 0.0, 0.0)
    if not overhead.rank_ms or _find_error(overhead, held_out) > BETTER * _find_error(
        factor, held_out
    ):
        return None
    return overhead


def _solve(samples: Sequence[DegreeTimes]) -> DegreeOverhead:
    """Fit by non-negative least squares of relative errors.

    Disturbed samples weigh less.
    """
    from scipy.optimize import nnls  # half a second, which planning does not wait for

    rows = []
    for times in samples:
        columns = (
            times.predicted,
            times.micro_batches,
            times.micro_batches * (times.scheme.sp - 1.0),
        )
        rows.append(np.stack(columns, axis=1) / times.measured[:, None])
    matrix = np.concatenate(rows)
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(len(matrix))
    solution = np.zeros(3)
    for _ in range(ROUNDS):
        solution = nnls(matrix / scale * weights[:, None], weights)[0] / scale
        residuals = matrix @ solution - 1
        weights = (1 + (residuals / ROBUST_SCALE) ** 2) ** -0.25
    return DegreeOverhead(*(float(value) for value in solution))


def _find_error(overhead: DegreeOverhead, samples: Sequence[DegreeTimes]) -> float:
    """Return the mean over schemes of their median errors, so that each counts equally."""
    errors = [
        np.median(np.abs(overhead.predict(times) / times.measured - 1))
        for times in samples
        if len(times.measured)
    ]
    return float(np.mean(errors))


def find_overhead_of(by_scheme: Mapping[Scheme, DegreeTimes], least: int) -> DegreeOverhead | None:
    """Find the overhead of the schemes with ``least`` samples or more; None if none is found."""
    return fit_degree_overhead(
        [times for _, times in sorted(by_scheme.items()) if len(times.measured) >= least]
    )
