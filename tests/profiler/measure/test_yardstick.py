"""When a device counts as warm."""

import pytest
import torch

from seqplan.profiler.measure import yardstick
from seqplan.profiler.measure.yardstick import FLAT_READINGS, MOST_READINGS, Yardstick, warm_up


def test_a_device_that_slows_down_is_read_until_it_is_flat() -> None:
    """From its highest clock down by 0.4 % a reading, and then steady."""
    falling = iter([0.20 * 1.004 ** min(step, 30) for step in range(1000)])
    readings = warm_up(lambda: next(falling))
    assert 30 < len(readings) <= 30 + FLAT_READINGS
    assert readings[-1] == 0.20 * 1.004**30


def test_one_that_is_never_flat_is_read_a_bounded_number_of_times() -> None:
    restless = iter([0.2, 0.3] * MOST_READINGS)
    assert len(warm_up(lambda: next(restless))) == MOST_READINGS


def test_a_steady_one_is_read_no_more_than_it_takes() -> None:
    assert len(warm_up(lambda: 0.2)) == FLAT_READINGS


def test_a_sustained_reading_is_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "LOAD_S", 0.01)
    assert Yardstick(torch.device("cpu"), torch.float32).measure_sustained_ms() > 0
