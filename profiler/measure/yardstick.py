"""A small fixed piece of work whose time shows how fast the device is just now."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from seqplan.runtime.stopwatch import Clock

CPU_SIZE, CUDA_SIZE = 256, 4096
"""Rows of the square matrices that are multiplied: a few tenths of a millisecond of either."""

PRODUCTS = 5
"""Of a reading, their median: one may be interrupted."""

LOAD_S = 0.5
"""How long one sustained reading keeps a device busy, about."""

FLAT_READINGS, FLAT_WITHIN = 10, 0.01
"""A device is warm when so many sustained readings in a row differ by no more than this share."""

MOST_READINGS = 60
"""Half a minute: a device that is not flat by then never will be."""


class Yardstick:
    """Reads a device's speed; every reading is the same product of matrices."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, clock: Clock | None = None
    ) -> None:
        size = CUDA_SIZE if device.type == "cuda" else CPU_SIZE
        self._clock = clock or Clock(device)
        self._matrices = [torch.randn(size, size, device=device, dtype=dtype) for _ in range(3)]

    def read(self) -> float:
        """Return milliseconds of a product now; the device has nothing left to do then."""
        return median(self._product() for _ in range(PRODUCTS))

    def measure_sustained_ms(self) -> float:
        """Return milliseconds of a product within a load of ``LOAD_S`` without a pause."""
        products = max(1, round(LOAD_S * 1e3 / max(self.read(), 1e-3)))
        return self._product(products) / products

    def _product(self, times: int = 1) -> float:
        one, other, result = self._matrices
        started = self._clock.mark()
        for _ in range(times):
            torch.mm(one, other, out=result)
        return self._clock.ms(started, self._clock.mark())


def warm_up(read: Callable[[], float]) -> list[float]:
    """Read until the device is as fast as it stays under load; return all readings.

    A device starts at its highest clock and falls until power and temperature are steady. At most
    ``MOST_READINGS``.
    """
    readings: list[float] = []
    while len(readings) < MOST_READINGS:
        readings.append(read())
        last = readings[-FLAT_READINGS:]
        if len(last) == FLAT_READINGS and max(last) <= min(last) * (1 + FLAT_WITHIN):
            break
    return readings
