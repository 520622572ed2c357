"""Parts of verifying a device that need none: limits, the search for the most, listed devices."""

import math

import pytest

from seqplan.profiler.verify.memory_check import (
    LEAST_LENGTH,
    SEARCH_TO,
    _affordable,
    largest_that_runs,
)
from seqplan.profiler.verify.rates_check import find_data_sheet
from seqplan.profiler.verify.results import Figure


@pytest.mark.parametrize(
    ("value", "least", "most", "missed"),
    [
        (1.0, None, 1.0, False),
        (1.001, None, 1.0, True),
        (0.0, None, 0.0, False),
        (0.96, 0.97, 1.03, True),
        (1.03, 0.97, 1.03, False),
        (0.0, 1.0, None, True),
        (math.nan, None, 1.0, True),
        (math.nan, None, None, False),
        (-0.06, -0.05, 0.05, True),
    ],
)
def test_values_beyond_a_limit_are_misses(
    value: float, least: float | None, most: float | None, missed: bool
) -> None:
    figure = Figure("group", "name", value, least=least, most=most)
    assert figure.missed == missed
    assert (figure.strain > 1) == (missed or math.isnan(value))
    assert figure.document()["value"] == (None if math.isnan(value) else value)


@pytest.mark.parametrize("most", [0, 1, 7, 100, 730, 1000, 1001, 4000])
def test_the_most_that_runs_is_found(most: int) -> None:
    """From a prediction that is too high, too low or right."""
    tried: list[int] = []

    def runs(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= most

    low, high = largest_that_runs(runs, 1000)
    assert low <= most < high
    assert high - low <= max(1, SEARCH_TO * low)
    assert len(tried) < 70


@pytest.mark.parametrize(
    ("name", "memory_gb", "hardware"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0, "h100-80gb"),
        ("NVIDIA H100 PCIe", 85.0, "h100-pcie-80gb"),
        ("NVIDIA H200", 150.1, "h200-141gb"),
        ("NVIDIA A100-SXM4-40GB", 42.3, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85.0, "a100-80gb"),
        ("NVIDIA B200", 191.5, "b200-180gb"),
        ("NVIDIA GeForce RTX 4090", 25.3, None),
    ],
)
def test_devices_are_recognized_by_name_and_memory(
    name: str, memory_gb: float, hardware: str | None
) -> None:
    known = find_data_sheet(name, memory_gb * 1e9)
    assert (None if known is None else known.name) == hardware


@pytest.mark.parametrize(("seconds", "length"), [(1e9, 256), (0.0, LEAST_LENGTH)])
def test_lengths_are_halved_until_the_time_is_enough(seconds: float, length: int) -> None:
    tried: list[int] = []
    assert _affordable(256, lambda tokens: tried.append(tokens), seconds) == length  # type: ignore[arg-type, return-value]
    assert tried == [256 // 4 // 2**k for k in range(len(tried))]
