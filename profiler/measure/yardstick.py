"""A small fixed piece of work whose time tells how fast the device is just now."""

from __future__ import annotations

from statistics import median

import torch

from seqplan.profiler.measure.device import Clock

CPU_SIZE, CUDA_SIZE = 256, 4096
"""Rows of the square matrices that are multiplied: a few tenths of a millisecond of either."""

PRODUCTS = 5
"""Of a reading, their median: one may be interrupted."""


class Yardstick:
    """Reads a device's speed; every reading is the same product of matrices."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        size = CUDA_SIZE if device.type == "cuda" else CPU_SIZE
        self._clock = Clock(device)
        self._matrices = [torch.randn(size, size, device=device, dtype=dtype) for _ in range(3)]

    def read(self) -> float:
        """Return milliseconds of a product now; the device has nothing left to do then."""
        return median(self._product() for _ in range(PRODUCTS))

    def _product(self) -> float:
        one, other, result = self._matrices
        started = self._clock.mark()
        torch.mm(one, other, out=result)
        return self._clock.ms(started, self._clock.mark())
