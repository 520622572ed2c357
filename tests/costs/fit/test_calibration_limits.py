"""When a profile has drifted too far: rules over random measurements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.costs.fit.calibration import (
    ASSUMED_LIMIT,
    LEAST_LIMIT,
    LEAST_MEASURED,
    RECENT,
    Stated,
    find_stated_error,
    measure_calibration_error,
)
from seqplan.costs.latency import Latency
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.plans.scheme import Scheme

TIMES = st.lists(st.floats(0.1, 1e6), min_size=LEAST_MEASURED, max_size=60)


@given(TIMES, st.floats(0.2, 5.0))
def test_a_common_factor_is_the_bias(predicted: list[float], factor: float) -> None:
    running = measure_calibration_error(
        Scheme(), predicted, [factor * ms for ms in predicted], None
    )
    assert running.bias == pytest.approx(factor - 1, abs=1e-9)
    assert running.median == pytest.approx(abs(factor - 1), abs=1e-9)
    assert running.p90 == pytest.approx(abs(factor - 1), abs=1e-9)
    if abs(abs(factor - 1) - ASSUMED_LIMIT) > 1e-6:
        assert (running.warning is not None) == (abs(factor - 1) > ASSUMED_LIMIT)
    if running.warning:
        assert ("slower" in running.warning) == (factor > 1)


@given(TIMES, st.data())
def test_fewer_than_half_disturbed_is_no_calibration(
    predicted: list[float], data: st.DataObject
) -> None:
    disturbed = data.draw(st.integers(0, (min(len(predicted), RECENT) - 1) // 2))
    last = len(predicted) - disturbed
    measured = [9 * p if at >= last else p for at, p in enumerate(predicted)]
    assert measure_calibration_error(Scheme(), predicted, measured, None).warning is None


@given(st.integers(0, 300))
def test_a_change_is_found_in_the_latest_pipelines(before: int) -> None:
    predicted = np.full(before + RECENT, 100.0)
    slower = predicted * np.where(np.arange(len(predicted)) < before, 1.0, 1.2)
    running = measure_calibration_error(Scheme(), predicted, slower, None)
    assert (running.recent, running.bias) == (pytest.approx(0.2), pytest.approx(0.2))
    assert running.warning is not None
    back = measure_calibration_error(
        Scheme(), predicted, np.roll(slower, -before) if before > RECENT else predicted, None
    )
    assert back.warning is None


@given(st.lists(st.floats(0.1, 1e6), max_size=LEAST_MEASURED - 1))
def test_too_few_pipelines_give_no_warning(predicted: list[float]) -> None:
    running = measure_calibration_error(Scheme(), predicted, [2 * ms for ms in predicted], None)
    assert (running.pipelines, running.warning) == (len(predicted), None)


@pytest.mark.parametrize(("p90", "limit"), [(0.2, 0.2), (0.03, 0.03), (1e-9, LEAST_LIMIT)])
def test_the_stated_error_is_the_limit(p90: float, limit: float) -> None:
    predicted = np.linspace(1, 9, 20)
    stated = Stated(40, p90 / 3, p90)
    within = measure_calibration_error(Scheme(), predicted, predicted * (1 + 0.9 * limit), stated)
    beyond = measure_calibration_error(Scheme(), predicted, predicted * (1 + 1.1 * limit), stated)
    assert within.limit == beyond.limit == limit
    assert within.warning is None
    assert beyond.warning is not None
    assert "states" in beyond.warning


@pytest.mark.parametrize(
    "fit",
    [
        None,
        {},
        {"held_out": None},
        {"held_out": {"samples": 0, "median": None, "p90": None}},
        {"held_out": {"samples": 3, "median": "a", "p90": 0.1}},
        {"held_out": {"samples": 3, "median": 0.1, "p90": float("nan")}},
    ],
)
def test_a_fit_that_states_nothing(fit: dict[str, object] | None) -> None:
    assert (
        find_stated_error(ProfiledScheme(Scheme(), Latency(1, 1, 1), None, "measured", fit)) is None
    )


def test_a_fit_that_states_its_error() -> None:
    fit = {"held_out": {"samples": 12, "median": 0.01, "p90": 0.04, "largest": 0.09}}
    entry = ProfiledScheme(Scheme(), Latency(1, 1, 1), None, "measured", fit)
    assert find_stated_error(entry) == Stated(12, 0.01, 0.04)
    assert find_stated_error(None) is None


def test_the_warning_of_times_that_scatter_names_no_side() -> None:
    predicted = [100.0] * 32
    scattered = [80.0, 121.0] * 16
    calibration = measure_calibration_error(Scheme(), predicted, scattered, None)
    assert calibration.warning is not None
    assert (
        "missed the prediction by 20.5 % (median), either way; 5.0 % is assumed"
        in calibration.warning
    )
    slower = measure_calibration_error(Scheme(), predicted, [120.0] * 32, None)
    assert slower.warning is not None
    assert "were 20.0 % slower than predicted (median); 5.0 % is assumed" in slower.warning
