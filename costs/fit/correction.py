"""How measured schemes differ from a profile, in a form that holds for those not measured, too.

A trainer that launches each kernel in time pays for every micro-batch and every step of a ring,
whatever the tokens are; a slower attention kernel costs by the square of the lengths. One factor
over all schemes would hide both.
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
"""Share of the median error of a simpler form that one must reach to be taken."""

LEAST_ERROR = 1e-3
"""Median error of a form below which none is looked for that is better."""

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
class Correction:
    """Factors of the time of ``attention`` and of all else, and ms a micro-batch.

    ``fixed_ms``, and ``rank_ms`` a further rank of Ulysses and ring.
    """

    attention: float
    factor: float
    fixed_ms: float = 0.0
    rank_ms: float = 0.0

    def correct(self, latency: Latency, scheme: Scheme) -> Latency:
        """Return the corrected coefficients of a scheme."""
        scaled = replace(latency.scale(self.factor), a=latency.a * self.attention)
        return replace(scaled, c=scaled.c + self.fixed_ms + (scheme.sp - 1) * self.rank_ms)

    def predict(self, times: DegreeTimes) -> Floats:
        """Compute the time of samples (ms)."""
        added = self.fixed_ms + (times.scheme.sp - 1) * self.rank_ms
        slower = (self.attention - self.factor) * times.attention
        return self.factor * times.predicted + slower + times.micro_batches * added

    def __str__(self) -> str:
        if self.attention != self.factor:
            return f"attention times {self.attention:.3f}, all else times {self.factor:.3f}"
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


def find_correction(by_scheme: Mapping[Scheme, DegreeTimes], least: int) -> Correction | None:
    """Find what predicts held-out samples clearly better than one factor; None if nothing does.

    Another factor for attention; or, of schemes of two or more degrees of ulysses·ring, an overhead
    by rank, if that is clearly better than both: schemes of many ranks run long sequences, so that
    either looks like the other. Of schemes with ``least`` samples or more; half of them are held
    out.
    """
    samples = [times for _, times in sorted(by_scheme.items()) if len(times.measured) >= least]
    if not samples:
        return None
    halves = [split_halves(len(times.measured)) for times in samples]
    made_from = [times.select(half) for times, (half, _) in zip(samples, halves, strict=True)]
    held_out = [times.select(half) for times, (_, half) in zip(samples, halves, strict=True)]
    factor = float(np.median(np.concatenate([t.measured / t.predicted for t in made_from])))
    best, least_error = None, _find_error(Correction(factor, factor), held_out)
    for correction in (_fit_by_work(made_from), _fit_overhead(made_from)):
        if correction is not None and least_error > LEAST_ERROR:
            error = _find_error(correction, held_out)
            if error <= BETTER * least_error:
                best, least_error = correction, error
    return best


def _fit_by_work(samples: Sequence[DegreeTimes]) -> Correction | None:
    """Fit a factor of attention's time and one of the rest; None if one of them would be 0."""
    columns = [np.stack([t.attention, t.predicted - t.attention], axis=1) for t in samples]
    attention, factor = _solve(columns, samples)
    return Correction(attention, factor) if attention > 0 and factor > 0 else None


def _fit_overhead(samples: Sequence[DegreeTimes]) -> Correction | None:
    """Fit one factor, and the time that a micro-batch and its further ranks add.

    None if ranks add none, or all schemes have equally many.
    """
    if len({times.scheme.sp for times in samples}) < 2:
        return None
    columns = [
        np.stack([t.predicted, t.micro_batches, t.micro_batches * (t.scheme.sp - 1.0)], axis=1)
        for t in samples
    ]
    factor, fixed_ms, rank_ms = _solve(columns, samples)
    return Correction(factor, factor, fixed_ms, rank_ms) if rank_ms else None


def _solve(columns: Sequence[Floats], samples: Sequence[DegreeTimes]) -> list[float]:
    """Fit measured times by non-negative least squares of relative errors.

    Disturbed samples weigh less. ``columns``: (samples, coefficients) of each scheme.
    """
    from scipy.optimize import nnls  # half a second, which planning does not wait for

    matrix = np.concatenate(
        [of / times.measured[:, None] for of, times in zip(columns, samples, strict=True)]
    )
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    weights = np.ones(len(matrix))
    solution = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        solution = nnls(matrix / scale * weights[:, None], weights)[0] / scale
        residuals = matrix @ solution - 1
        weights = (1 + (residuals / ROBUST_SCALE) ** 2) ** -0.25
    return [float(value) for value in solution]


def _find_error(correction: Correction, samples: Sequence[DegreeTimes]) -> float:
    """Return the mean over schemes of their median errors, so that each counts equally."""
    errors = [
        np.median(np.abs(correction.predict(times) / times.measured - 1))
        for times in samples
        if len(times.measured)
    ]
    return float(np.mean(errors))
