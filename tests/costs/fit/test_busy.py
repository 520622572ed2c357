"""Samples of a machine that had too much else to do."""

from dataclasses import replace

from sampled import samples

from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.pooling import pool_samples, rescale_to_usual_speed
from seqplan.costs.fit.samples import Sample
from seqplan.plans.scheme import Scheme


def read(slow: float, every: int) -> list[Sample]:
    """Samples whose yardstick took 0.2 ms, and ``slow`` times that for each ``every``-th point."""
    return [
        replace(
            measured,
            layers_yardstick_ms=(0.2 * (slow if index % every == 0 else 1.0),) * 3,
            ends_yardstick_ms=(0.2,) * 3,
        )
        for index, measured in enumerate(samples(Scheme()))
    ]


def test_a_device_that_varies_is_not_busy() -> None:
    assert busy(read(2.9, 3)) is None
    assert busy(read(400.0, 60)) is None  # a single interruption
    assert busy(samples(Scheme())) is None  # nothing was read
    assert busy([]) is None


def test_a_busy_device_is_described_with_figures() -> None:
    assert busy(read(5.0, 3)) == (
        "the machine was too busy: a fixed piece of work usually took 0.2 ms, and 5.0 times that "
        "in every tenth case"
    )


def test_processor_time_is_stated_too() -> None:
    """As it was had, whatever times are rescaled to."""
    half = [
        replace(measured, layers_cpu_ms=tuple(ms / 2 for ms in measured.layers_ms))
        for measured in read(5.0, 3)
    ]
    for together in (half, pool_samples(half), pool_samples(rescale_to_usual_speed(half))):
        assert busy(together).endswith("; layers had 0.5 cores of it while they ran")
