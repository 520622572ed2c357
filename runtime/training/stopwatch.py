"""Device time, which on CUDA differs from the host's time of the calls."""

from __future__ import annotations

import time
from typing import Any

import torch


class Stopwatch:
    """Measures from its making to ``stop`` on ``device``, without holding the host up."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._started: Any = self._now()
        self._stopped: Any = self._started

    def stop(self) -> None:
        """End the measurement with the work submitted so far."""
        self._stopped = self._now()

    def seconds(self) -> float:
        """Return the seconds between the two, after the device has come to the second."""
        if not self._cuda:
            return float(self._stopped - self._started)
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1000.0

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
