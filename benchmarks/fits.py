"""Coverage of the intervals of fits: devices that are slowed while they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Scheme
from seqplan.costs.fit.latency_fit import Fit
from seqplan.costs.fit.measured_profile import fit_schemes
from seqplan.costs.fit.pooling import pool_samples, rescale_to_usual_speed
from seqplan.costs.fit.samples import MeasuredOn, Role, Sample
from seqplan.costs.latency import Latency
from seqplan.profiler.measure.design import design

LAYERS, TIMED, ROUNDS, REPETITIONS = 8, 2, 3, 3
"""Layers of the model and of its timed part, rounds of all micro-batches, repetitions of each."""

SHORTEST, LONGEST = 64, 4096
"""Tokens of micro-batches."""

CURVES = (Latency(1e-6, 0.01, 1.0), Latency(2e-7, 0.02, 5.0))
"""Milliseconds of the whole model: attention that counts, and long starts of kernels."""

FACTORS = ((1.05, 1.2), (1.1, 1.5), (1.3, 3.0), (1.5, 2.0))
"""Times that a slowed repetition takes, from and to."""

SHARES = (0.1, 0.3, 0.6)
"""Of the repetitions, or of the micro-batches, that are slowed."""

NOISES = (0.003, 0.01, 0.03)
"""Standard deviation of each time's logarithm, which the yardstick does not show."""

WHOLE = (False, True)
"""Whether a micro-batch's repetitions are slowed together."""

READING_MS, READING_NOISE = 0.4, 0.005
"""Time of the yardstick on the undisturbed device, and its own noise."""

MEASURED_ON = MeasuredOn(
    "a simulated device",
    "float32",
    "none",
    tuple(
        {"hidden": 64, "layers": LAYERS, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 9}.items()
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A device, and how it is slowed."""

    curve: Latency
    factors: tuple[float, float]
    share: float
    noise: float
    whole: bool


CASES = tuple(Case(*setting) for setting in product(CURVES, FACTORS, SHARES, NOISES, WHOLE))


@dataclass(frozen=True, slots=True)
class Covered:
    """A case's fit, and which of a, b and c are within their intervals."""

    case: Case
    fit: Fit
    within: tuple[bool, ...]


def fit_case(case: Case, seed: int) -> Covered:
    """Simulate a measurement, fit it, and compare its intervals with the true coefficients."""
    rng = np.random.default_rng(seed)
    run = [
        _simulate(case, point.role, point.lengths, rng)
        for _ in range(ROUNDS)
        for point in design(SHORTEST, LONGEST)
    ]
    fit = fit_schemes(MEASURED_ON, pool_samples(rescale_to_usual_speed(run)))[Scheme()]
    return Covered(
        case,
        fit,
        tuple(
            low <= getattr(case.curve, name) <= high for name, (low, high) in fit.intervals.items()
        ),
    )


def cover_intervals(data: Sequence[Data]) -> Output:
    """Count intervals that hold the truth, by noise and by slowed share."""
    covered = [fit_case(case, seed) for seed, case in enumerate(CASES)]
    groups = {
        f"noise of {noise:.1%}": [c for c in covered if c.case.noise == noise] for noise in NOISES
    }
    groups |= {
        f"{share:.0%} slowed": [c for c in covered if c.case.share == share] for share in SHARES
    }
    groups["all"] = covered
    yield Table(
        "device | cases | a | b | c | all three | suspect | largest error of b if usable",
        "{} | {} | {:.1%} | {:.1%} | {:.1%} | {:.1%} | {} | {:.0%}",
        [_summarize(name, group) for name, group in groups.items()],
        f"Intervals of {len(covered)} fits of simulated devices",
    )


def _summarize(name: str, covered: Sequence[Covered]) -> Cells:
    within = np.array([case.within for case in covered])
    usable = [one for one in covered if one.fit.verdict == "usable"]
    error = max(abs(one.fit.latency.b / one.case.curve.b - 1) for one in usable)
    shares = *within.mean(axis=0), within.all(axis=1).mean()
    return name, len(covered), *shares, len(covered) - len(usable), error


def _simulate(case: Case, role: Role, lengths: tuple[int, ...], rng: np.random.Generator) -> Sample:
    """Time a micro-batch of the device, and the yardstick around it."""
    slowed = rng.random(1 if case.whole else REPETITIONS) < case.share
    factors = np.where(slowed, rng.uniform(*case.factors, len(slowed)), 1.0)
    factors = np.broadcast_to(factors, REPETITIONS)
    ms = case.curve.micro_batch_ms(lengths) * TIMED / LAYERS
    times = ms * factors * np.exp(rng.normal(0, case.noise, REPETITIONS))
    readings = READING_MS * factors * np.exp(rng.normal(0, READING_NOISE, REPETITIONS))
    return Sample(
        scheme=Scheme(),
        role=role,
        lengths=lengths,
        layers=TIMED,
        layers_ms=tuple(times.tolist()),
        ends_ms=(1e-9,) * REPETITIONS,
        forward_ms=tuple((times / 3).tolist()),
        saved_bytes=sum(lengths),
        layers_saved_bytes=sum(lengths),
        layers_yardstick_ms=tuple(readings.tolist()),
        ends_yardstick_ms=tuple(readings.tolist()),
    )
