"""Device time, which on CUDA differs from the host's time of the calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Stopwatch:
    """Measures from its making to ``stop`` on ``device``, without holding the host up."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._started: Any = self._now()
        self._stopped: Any = None
        self._pauses: list[tuple[Any, Any]] = []

    def stop(self) -> None:
        """End the measurement with the work submitted so far."""
        self._stopped = self._now()

    def run_apart(self, function: Callable[[], None]) -> None:
        """Run ``function`` and leave out the device's time of its work, unless stopped."""
        if self._stopped is not None:
            function()
            return
        paused = self._now()
        function()
        self._pauses.append((paused, self._now()))

    def seconds(self) -> float:
        """Return the seconds between the two, after the device has come to the second."""
        if self._cuda:
            self._stopped.synchronize()
        whole = self._between(self._started, self._stopped)
        return whole - sum(self._between(*pause) for pause in self._pauses)

    def _between(self, start: Any, stop: Any) -> float:
        if not self._cuda:
            return float(stop - start)
        return float(start.elapsed_time(stop)) / 1000.0

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
