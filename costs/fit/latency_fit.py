"""Fitting T(l, P) = a·l² + b·l + c to samples, and saying how far it can be trusted.

A micro-batch of several sequences counts as Σ(a·l² + b·l) + c (Hydraulis §4). Errors are relative:
a planner that compares micro-batches of 200 and of 20,000 tokens needs both right. The loss is
robust (soft L1 beyond a few per cent), so that a disturbed repetition does not bend the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.latency import Latency
from seqplan.plans.percent import percent

ROBUST_SCALE = 0.03
"""Relative residuals beyond this count linearly rather than squared."""

LEAST_LENGTHS = 4
"""Samples that three coefficients and an error need."""

CONFIDENCE = 0.95
USABLE_MEDIAN, USABLE_P90, USABLE_SPREAD = 0.05, 0.10, 0.10
"""A fit is usable where its held-out errors and its samples' spread stay below these."""

STEADY_SPREAD, UNSTEADY_SPREAD = 0.05, 0.20
"""A device whose speed varied by more is noted; by more than the second, its fit is suspect."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors |predicted − measured| / measured; None if there are no samples."""

    samples: int
    median: float | None
    p90: float | None
    largest: float | None

    @classmethod
    def from_times(cls, predicted: Floats, measured: Floats) -> Errors:
        """Compare aligned arrays (ms)."""
        if not len(measured):
            return cls(0, None, None, None)
        relative = np.abs(predicted - measured) / measured
        return cls(
            len(measured),
            float(np.median(relative)),
            float(np.quantile(relative, 0.9)),
            float(relative.max()),
        )


@dataclass(frozen=True, slots=True)
class LaunchBound:
    """Most tokens of a micro-batch whose time is the host's; the least such time (ms)."""

    tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients with their 95 % intervals, the errors by kind of sample, and a verdict.

    ``spread``: of a micro-batch's repetitions; ``device_spread``: of the device's speed meanwhile,
    which times are rescaled by, None if it was not read. Which of its speeds is the usual one is as
    uncertain, and the intervals are wider by that share of each coefficient. ``reasons``: why the
    fit is suspect; empty if it is usable. ``launch_bound``: of micro-batches that are not fitted,
    as the host takes longer to start them than the device to run them; None without such.
    """

    latency: Latency
    intervals: dict[str, tuple[float, float]]
    in_sample: Errors
    held_out: Errors
    packed: Errors
    spread: float
    device_spread: float | None
    reasons: tuple[str, ...]
    launch_bound: LaunchBound | None = None

    @property
    def verdict(self) -> str:
        """``usable``, or ``suspect``."""
        return "suspect" if self.reasons else "usable"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the fit that are no reason against it."""
        notes = []
        if self.device_spread is not None and self.device_spread > STEADY_SPREAD:
            notes.append(
                f"the device's speed varied by {percent(self.device_spread, 0)}, as it is shared "
                "or throttles: times are rescaled to its usual speed"
            )
        if self.launch_bound is not None:
            notes.append(
                f"micro-batches of up to {self.launch_bound.tokens:,} tokens take "
                f"{self.launch_bound.ms:,.3g} ms, for which the host starts kernels: they are not "
                "fitted, and predicted too short"
            )
        return tuple(notes)

    def document(self) -> dict[str, Any]:
        """Return the fit as a profile keeps it next to the coefficients."""
        return {
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "in_sample": asdict(self.in_sample),
            "held_out": asdict(self.held_out),
            "packed": asdict(self.packed),
            "spread": self.spread,
            "device_spread": self.device_spread,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            **({} if self.launch_bound is None else {"launch_bound": asdict(self.launch_bound)}),
        }


@dataclass(frozen=True, slots=True)
class Observed:
    """Lengths (tokens) of a micro-batch, its measured time (ms) and its repetitions' spread.

    Or of several ``micro_batches`` one after the other, each of which pays c.
    """

    lengths: tuple[int, ...]
    ms: float
    spread: float = 0.0
    micro_batches: int = 1


def fit_latency(
    fitted: Sequence[Observed],
    held_out: Sequence[Observed],
    packed: Sequence[Observed],
    device_spread: float | None = None,
) -> Fit:
    """Fit to ``fitted`` only; the others evaluate it.

    ``ValueError`` for fewer than four fitted samples, or a time that is not positive.
    """
    for observed in (*held_out, *packed):
        _check_time(observed)
    curve = fit_curve(fitted)
    held, pack = (
        Errors.from_times(features(part) @ curve.coefficients, times(part))
        for part in (held_out, packed)
    )
    spread = float(np.median([observed.spread for observed in (*fitted, *held_out, *packed)]))
    return Fit(
        latency=curve.latency,
        intervals=_intervals(curve, device_spread or 0.0),
        in_sample=curve.errors,
        held_out=held,
        packed=pack,
        spread=spread,
        device_spread=device_spread,
        reasons=_reasons(held, pack, spread, device_spread or 0.0),
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """Coefficients with their errors on the samples that they are fitted to.

    ``matrix``: the samples' features over their times, times ``scale``; ``residuals``: relative.
    """

    coefficients: Floats
    errors: Errors
    matrix: Floats
    scale: Floats
    residuals: Floats

    @property
    def latency(self) -> Latency:
        """The coefficients as a latency."""
        return Latency(*(float(value) for value in self.coefficients))


def fit_curve(fitted: Sequence[Observed]) -> Curve:
    """Fit coefficients without held-out samples and intervals; ``ValueError`` as above."""
    if len(fitted) < LEAST_LENGTHS:
        raise ValueError(
            f"three coefficients need at least {LEAST_LENGTHS} samples, there are {len(fitted)}"
        )
    for observed in fitted:
        _check_time(observed)
    columns, measured = features(fitted), times(fitted)
    # Relative residuals: each row over its time. Columns scaled to one, as a and c differ by
    # ten orders of magnitude.
    relative = columns / measured[:, None]
    scale = 1.0 / np.maximum(np.abs(relative).max(axis=0), 1e-300)
    matrix = relative * scale
    from scipy import optimize  # here: reading and evaluating fits starts without it

    start, _ = optimize.nnls(matrix, np.ones(len(measured)))
    solution = optimize.least_squares(
        lambda x: matrix @ x - 1.0,
        np.maximum(start, 1e-9),
        jac=lambda x: matrix,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        x_scale=1.0,
    )
    coefficients = np.where(solution.x * scale < 1e-30, 0.0, solution.x * scale)
    errors = Errors.from_times(columns @ coefficients, measured)
    return Curve(coefficients, errors, matrix, scale, matrix @ solution.x - 1.0)


def _check_time(observed: Observed) -> None:
    """Raise ``ValueError`` for a time that is not positive."""
    if not 0 < observed.ms < float("inf"):
        raise ValueError(
            f"lengths {observed.lengths}: {observed.ms} ms is not a positive time. Measure it again"
        )


def features(samples: Sequence[Observed]) -> Floats:
    """Return Σl², Σl and the micro-batches of each sample, (samples, 3)."""
    rows = [
        (
            float(sum(length**2 for length in sample.lengths)),
            float(sum(sample.lengths)),
            float(sample.micro_batches),
        )
        for sample in samples
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def times(samples: Sequence[Observed]) -> Floats:
    return np.array([sample.ms for sample in samples], dtype=np.float64)


def _intervals(curve: Curve, device_spread: float) -> dict[str, tuple[float, float]]:
    """Compute Student intervals of the linear model around the solution, cut at zero.

    Each is wider by ``device_spread`` of its coefficient. The covariance is that of an M-estimate
    (Huber, Robust Statistics, 1981, 7.6) of the robust loss, so that one disturbed sample does not
    widen them all.
    """
    matrix, residuals, coefficients = curve.matrix, curve.residuals, curve.coefficients
    squares = 1.0 + (residuals / ROBUST_SCALE) ** 2
    pulls, slopes = residuals * squares**-0.5, squares**-1.5
    freedom, slope = max(len(residuals) - 3, 1), float(slopes.mean())
    few = 1 + matrix.shape[1] / len(residuals) * float(slopes.var()) / slope**2
    variance = (few / slope) ** 2 * float(pulls @ pulls) / freedom
    covariance = np.linalg.pinv(matrix.T @ matrix) * variance
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

    widths = stdtrit(freedom, 0.5 + CONFIDENCE / 2) * np.sqrt(np.diag(covariance)) * curve.scale
    widths = widths + device_spread * coefficients
    return {
        name: (max(0.0, float(value - width)), float(value + width))
        for name, value, width in zip("abc", coefficients, widths, strict=True)
    }


def _reasons(
    held_out: Errors, packed: Errors, spread: float, device_spread: float
) -> tuple[str, ...]:
    reasons = []
    for name, errors in (("held-out", held_out), ("packed", packed)):
        if errors.median is None or errors.p90 is None:
            reasons.append(f"no {name} samples to evaluate it by")
        elif errors.median > USABLE_MEDIAN or errors.p90 > USABLE_P90:
            reasons.append(
                f"{name} errors of {percent(errors.median)} (median) and {percent(errors.p90)} "
                f"(p90) exceed {percent(USABLE_MEDIAN, 0)} and {percent(USABLE_P90, 0)}"
            )
    if spread > USABLE_SPREAD:
        reasons.append(
            f"repetitions spread by {percent(spread, 0)}: the device is shared or throttles, "
            "measure again"
        )
    if device_spread > UNSTEADY_SPREAD:
        reasons.append(
            f"the device's speed varied by {percent(device_spread, 0)}, more than "
            f"{percent(UNSTEADY_SPREAD, 0)}: its usual speed is not known, measure again"
        )
    return tuple(reasons)
