"""Rounds and runs count together, and a device that was slowed for a while bends no curve."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import MEASURED_ON, sample, samples

from seqplan.costs.fit.measured_profile import fit_schemes
from seqplan.costs.fit.pooling import (
    device_spread,
    merge_runs,
    pool_samples,
    rescale_to_usual_speed,
    response,
)
from seqplan.costs.fit.sample_file import SampleFile
from seqplan.costs.fit.samples import Sample
from seqplan.plans.scheme import Scheme


def slowed(sample: Sample, by: float, yardstick_ms: float = 0.4) -> Sample:
    """All that was timed, ``by`` times as long."""
    times = {
        name: tuple(by * ms for ms in getattr(sample, name))
        for name in ("layers_ms", "forward_ms", "ends_ms", "experts_ms")
    }
    read = (by * yardstick_ms,) * len(sample.layers_ms)
    of_experts = (by * yardstick_ms,) * len(sample.experts_ms)
    return replace(
        sample,
        **times,
        **dict.fromkeys(("layers_yardstick_ms", "ends_yardstick_ms"), read),
        experts_yardstick_ms=of_experts,
    )


def test_a_passing_disturbance_does_not_bend_the_curve() -> None:
    """Every round's repetitions count together; one that was slow throughout shows as spread."""
    calm = samples(Scheme())
    slow = [
        replace(measured, turn=1, layers_ms=tuple(1.6 * ms for ms in measured.layers_ms))
        for measured in calm
    ]
    together = pool_samples([*calm, *slow, *(replace(measured, turn=2) for measured in calm)])
    assert [(measured.role, measured.lengths, measured.turn) for measured in together] == [
        (measured.role, measured.lengths, 0) for measured in calm
    ]
    for measured, alone in zip(together, calm, strict=True):
        assert len(measured.layers_ms) == len(measured.ends_ms) == len(measured.forward_ms) == 9
        assert measured.whole_ms(8) == pytest.approx(alone.whole_ms(8), rel=0.011)
        assert measured.spread > 0.1
        assert measured.saved_bytes == alone.saved_bytes
    assert pool_samples(calm) == calm


def test_out_of_memory_in_one_round_is_out_of_memory() -> None:
    fits = sample(Scheme(), "fit", (64,))
    full = replace(fits, turn=1, layers_ms=(), ends_ms=(), forward_ms=(), oom=True)
    other = replace(fits, layers=4)  # measured with other layers: not the same
    assert pool_samples([fits, full, other]) == [full, other]


def test_peaks_of_all_rounds_are_kept_where_they_are_read() -> None:
    measured = replace(sample(Scheme(), "fit", (64,)), layers_peak_bytes=5, ends_peak_bytes=9)
    (together,) = pool_samples(
        [measured, replace(measured, turn=1, layers_peak_bytes=7, ends_peak_bytes=3)]
    )
    assert (together.layers_peak_bytes, together.ends_peak_bytes) == (7, 9)


@given(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=30))
def test_times_are_as_at_one_speed(speeds: list[float]) -> None:
    """Whatever the speeds were, ratios of times are those of an equally fast device."""
    measured = sample(Scheme(), "fit", (64,))
    layers_ms = measured.layers_ms[:1] * 3
    measured = replace(measured, layers_ms=layers_ms, experts_ms=(0.6 * layers_ms[0],) * 2)
    steady = rescale_to_usual_speed([slowed(measured, by) for by in speeds])
    usual = [np.divide(sample.layers_ms, measured.layers_ms) for sample in steady]
    np.testing.assert_allclose(usual, usual[0][0])
    assert min(speeds) * 0.999 <= usual[0][0] <= max(speeds) * 1.001
    np.testing.assert_allclose(np.divide(steady[0].forward_ms, measured.forward_ms), usual[0][0])
    np.testing.assert_allclose(np.divide(steady[0].ends_ms, measured.ends_ms), usual[0][0])
    np.testing.assert_allclose(np.divide(steady[0].experts_ms, measured.experts_ms), usual[0][0])


def test_readings_count_by_their_correlation_with_times() -> None:
    """Noise of the yardstick is not put into times; half a response is taken for half."""
    rng = np.random.default_rng(0)

    def run(exponent: float) -> list[Sample]:
        base = sample(Scheme(), "fit", (64,))
        slower = []
        for by in np.exp(rng.normal(0, 0.2, 200)):
            read = (0.4 * by,) * 3
            measured = slowed(base, by**exponent)
            slower.append(replace(measured, layers_yardstick_ms=read, ends_yardstick_ms=read))
        return slower

    assert response(run(1.0)) == pytest.approx(1.0, abs=0.02)
    assert response(run(0.5)) == pytest.approx(0.5, abs=0.02)
    assert response(run(0.0)) == pytest.approx(0.0, abs=0.02)
    assert response(run(-1.0)) == 0.0
    noise = run(0.0)
    for noisy, steady in zip(noise, rescale_to_usual_speed(noise), strict=True):
        assert steady.layers_ms == pytest.approx(noisy.layers_ms, rel=0.02)


def test_a_device_slowed_at_random_gives_the_curve_of_a_steady_one() -> None:
    rng = np.random.default_rng(0)
    calm = [slowed(measured, 1.0) for measured in samples(Scheme())]
    noisy = [slowed(measured, float(rng.choice([1.0, 1.6]))) for measured in 2 * calm]
    truth, raw, fit = (
        fit_schemes(MEASURED_ON, pool_samples(several))[Scheme()]
        for several in (calm, noisy, rescale_to_usual_speed(noisy))
    )
    assert raw.verdict == "suspect"
    assert [reason.split(" by ")[0] for reason in fit.reasons] == ["the device's speed varied"]
    assert fit.held_out.largest == pytest.approx(0.0, abs=1e-4)
    assert fit.latency.a / fit.latency.b == pytest.approx(truth.latency.a / truth.latency.b)
    assert truth.notes == ()
    (note,) = fit.notes
    assert note.startswith("the device's speed varied by ")


def test_samples_without_readings_stay_as_they_are() -> None:
    bare = samples(Scheme())
    assert rescale_to_usual_speed(bare) == bare
    assert device_spread(bare) is None
    assert rescale_to_usual_speed([]) == []
    full = replace(bare[0], layers_ms=(), ends_ms=(), forward_ms=(), oom=True)
    assert rescale_to_usual_speed([full]) == [full]


def test_each_run_is_rescaled_to_its_usual_speed(tmp_path: Path) -> None:
    """Readings may be of other ranks on the same cores, or another torch."""
    measured = sample(Scheme(), "fit", (64,))
    for name, yardstick_ms in (("a", 0.4), ("b", 4.0)):
        with SampleFile(tmp_path / name, MEASURED_ON) as file:
            file.add(slowed(measured, 1.0, yardstick_ms))
    _, (both,) = merge_runs([tmp_path / "a", tmp_path / "b"])
    assert both.layers_ms == pytest.approx(2 * measured.layers_ms)
    assert both.layers_yardstick_ms == pytest.approx((0.4,) * 6)
    assert device_spread([both]) == pytest.approx(0.0)


def test_runs_of_other_speeds_make_intervals_wider(tmp_path: Path) -> None:
    for name, speed in (("a", 1.0), ("b", 1.09)):
        with SampleFile(tmp_path / name, MEASURED_ON) as file:
            for measured in samples(Scheme()):
                file.add(slowed(measured, speed, 0.4))
    measured_on, together = merge_runs([tmp_path / "a", tmp_path / "b"])
    (fit,) = fit_schemes(measured_on, together).values()
    assert fit.device_spread == pytest.approx(0.086, abs=0.01)


@pytest.mark.parametrize("slowness", ["for most of the time", "more and more"])
def test_truth_is_within_intervals_of_an_unsteady_device(slowness: str) -> None:
    """Which of its speeds is the usual one is unknown: intervals are wider, the fit suspect."""
    rng = np.random.default_rng(1)
    calm = [slowed(measured, 1.0) for measured in samples(Scheme())]
    turns = [replace(measured, turn=turn) for turn in range(3) for measured in calm]
    if slowness == "more and more":
        factors = np.linspace(1.0, 1.6, len(turns))
    else:
        factors = np.where(rng.random(len(turns)) < 0.6, rng.uniform(1.3, 3.0, len(turns)), 1.0)
    run = [slowed(measured, float(by)) for measured, by in zip(turns, factors, strict=True)]
    truth = fit_schemes(MEASURED_ON, pool_samples(calm))[Scheme()].latency
    fit = fit_schemes(MEASURED_ON, pool_samples(rescale_to_usual_speed(run)))[Scheme()]
    assert fit.latency.b > 1.2 * truth.b
    for name in "abc":
        low, high = fit.intervals[name]
        assert low <= getattr(truth, name) <= high
    assert fit.verdict == "suspect"
    (reason,) = fit.reasons
    assert reason.startswith("the device's speed varied by ")


def test_steady_device_leaves_intervals_and_verdict() -> None:
    calm = [slowed(measured, 1.0) for measured in samples(Scheme())]
    read, unread = (
        fit_schemes(MEASURED_ON, pool_samples(s))[Scheme()] for s in (calm, samples(Scheme()))
    )
    assert read.intervals == unread.intervals
    assert read.verdict == unread.verdict == "usable"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(("least", "most"), [(1.05, 1.2), (1.1, 1.5), (1.3, 3.0), (1.5, 2.0)])
def test_truth_is_within_intervals_whatever_part_of_repetitions_is_slowed(
    share: float, least: float, most: float
) -> None:
    calm = [slowed(measured, 1.0) for measured in samples(Scheme())]
    truth = fit_schemes(MEASURED_ON, pool_samples(calm))[Scheme()].latency
    for seed in range(2):
        rng = np.random.default_rng(seed)
        run = []
        for measured in 3 * calm:
            count = len(measured.layers_ms)
            slow = np.where(rng.random(count) < share, rng.uniform(least, most, count), 1.0)
            slow *= np.exp(rng.normal(0, 0.01, count))
            times = {
                name: tuple(np.array(getattr(measured, name)) * slow)
                for name in ("layers_ms", "forward_ms", "ends_ms")
            }
            read = tuple(0.4 * slow)
            run.append(replace(measured, **times, layers_yardstick_ms=read, ends_yardstick_ms=read))
        fit = fit_schemes(MEASURED_ON, pool_samples(rescale_to_usual_speed(run)))[Scheme()]
        for name in "abc":
            low, high = fit.intervals[name]
            assert low <= getattr(truth, name) <= high
        # No usable fit is too slow by more than a quarter.
        assert fit.verdict == "suspect" or fit.latency.b < 1.26 * truth.b
