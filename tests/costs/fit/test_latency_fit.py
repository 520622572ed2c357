"""Fits recover the truth behind samples, and report when they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.costs.fit.latency_fit import Errors, Fit, Observed, fit_latency
from seqplan.costs.latency import Latency

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
HELD = (90, 700, 3000)
PACKED = ((64, 500, 90), (1000, 1000), (4000, 64, 64, 64))


def fitted(latency: Latency, noise: np.ndarray | None = None) -> Fit:
    factors = np.ones(len(LENGTHS)) if noise is None else noise
    return fit_latency(
        [
            Observed((length,), latency.micro_batch_ms([length]) * factor)
            for length, factor in zip(LENGTHS, factors, strict=True)
        ],
        [Observed((length,), latency.micro_batch_ms([length])) for length in HELD],
        [Observed(lengths, latency.micro_batch_ms(lengths)) for lengths in PACKED],
    )


@given(a=st.floats(1e-8, 1e-4), b=st.floats(1e-4, 1.0), c=st.floats(0.01, 100.0))
def test_exact_samples_give_the_coefficients_back(a: float, b: float, c: float) -> None:
    fit = fitted(Latency(a, b, c))
    for errors in (fit.in_sample, fit.held_out, fit.packed):
        assert errors.largest < 1e-6
    assert fit.verdict == "usable"


@pytest.mark.parametrize("zero", ["a", "b", "c"])
def test_coefficients_are_never_negative(zero: str) -> None:
    latency = Latency(**({"a": 1e-6, "b": 0.05, "c": 3.0} | {zero: 0.0}))
    fit = fitted(latency, 1 + 0.02 * np.cos(np.arange(len(LENGTHS))))
    for name in "abc":
        low, high = fit.intervals[name]
        assert 0 <= low <= getattr(fit.latency, name) <= high


def test_one_disturbed_sample_does_not_bend_the_curve() -> None:
    noise = np.ones(len(LENGTHS))
    noise[3] = 2.0
    fit = fitted(Latency(1e-6, 0.05, 3.0), noise)
    assert fit.held_out.largest < 0.03
    assert fit.in_sample.largest == pytest.approx(0.5, abs=0.05)


def test_intervals_hold_the_truth_under_noise() -> None:
    """In at most one in ten of 200 noisy fits an interval misses its coefficient."""
    truth = Latency(1e-6, 0.05, 3.0)
    rng = np.random.default_rng(0)
    missed = {"a": 0, "b": 0, "c": 0}
    for _ in range(200):
        fit = fitted(truth, 1 + rng.normal(0, 0.01, len(LENGTHS)))
        for name in missed:
            low, high = fit.intervals[name]
            missed[name] += not low <= getattr(truth, name) <= high
    assert max(missed.values()) <= 20


def test_times_that_are_not_quadratic_are_suspect() -> None:
    cubic = [Observed((length,), 1e-9 * length**3 + 1.0) for length in LENGTHS]
    held = [Observed((length,), 1e-9 * length**3 + 1.0) for length in HELD]
    fit = fit_latency(cubic, held, held)
    assert fit.verdict == "suspect"
    assert any(reason.startswith("held-out errors of") for reason in fit.reasons)


def test_a_shared_device_is_found_by_the_spread() -> None:
    latency = Latency(1e-6, 0.05, 3.0)
    samples = [Observed((length,), latency.micro_batch_ms([length]), 0.3) for length in LENGTHS]
    fit = fit_latency(samples, samples, samples)
    assert fit.reasons == (
        "repetitions spread by 30 %: the device is shared or throttles, measure again",
    )


def test_a_fit_without_held_out_samples_is_suspect() -> None:
    latency = Latency(1e-6, 0.05, 3.0)
    samples = [Observed((length,), latency.micro_batch_ms([length])) for length in LENGTHS]
    fit = fit_latency(samples, [], samples)
    assert fit.held_out == Errors(0, None, None, None)
    assert fit.reasons == ("no held-out samples to evaluate it by",)


def test_bad_samples_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least 4 samples, there are 3"):
        fit_latency([Observed((length,), 1.0) for length in (1, 2, 3)], [], [])
    with pytest.raises(ValueError, match=r"lengths \(2,\): 0\.0 ms is not a positive time"):
        fit_latency([Observed((length,), float(length - 2)) for length in (3, 2, 5, 4)], [], [])


@pytest.mark.parametrize(("noise", "least"), [(0.005, 0.92), (0.03, 0.92), (0.1, 0.88)])
def test_intervals_hold_the_truth_whatever_the_noise(noise: float, least: float) -> None:
    truth, rng = Latency(1e-5, 0.05, 20.0), np.random.default_rng(3)
    lengths = np.unique(np.geomspace(64, 32768, 13).round()).astype(int).tolist()

    def observe(*micro_batch: int) -> Observed:
        ms = truth.micro_batch_ms(micro_batch) * float(np.exp(noise * rng.standard_normal()))
        return Observed(micro_batch, ms)

    held = []
    for _ in range(150):
        fit = fit_latency([observe(n) for n in lengths], [observe(3000)], [observe(500, 900)])
        held += [low <= getattr(truth, k) <= high for k, (low, high) in fit.intervals.items()]
    assert least <= np.mean(held) <= 0.99
