"""Device time, which on CUDA differs from the host's time of the calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Clock:
    """Events on a CUDA device, the wall elsewhere.

    ``processor_time``: on a CPU, seconds of processor time of all threads of this process instead.
    """

    def __init__(self, device: torch.device, *, processor_time: bool = False) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._seconds = time.process_time if processor_time else time.perf_counter

    def mark(self) -> Any:
        """Mark the present, on the device's current stream."""
        if not self._cuda:
            return self._seconds()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def ms(self, start: Any, end: Any, *, wait: bool = True) -> float:
        """Return milliseconds between two marks; waits for the later, unless it has passed."""
        if not self._cuda:
            return float(end - start) * 1e3
        if wait:
            end.synchronize()
        return float(start.elapsed_time(end))


class Stopwatch:
    """Measures from its making to ``stop`` on ``device``, without holding the host up."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._started: Any = self._clock.mark()
        self._stopped: Any = None
        self._pauses: list[tuple[Any, Any]] = []

    def stop(self) -> None:
        """End the measurement with the work submitted so far."""
        self._stopped = self._clock.mark()

    def run_apart(self, function: Callable[[], None]) -> None:
        """Run ``function`` and leave out the device's time of its work, unless stopped."""
        if self._stopped is not None:
            function()
            return
        paused = self._clock.mark()
        function()
        self._pauses.append((paused, self._clock.mark()))

    def seconds(self) -> float:
        """Return the seconds between the two, after the device has come to the second."""
        whole_ms = self._clock.ms(self._started, self._stopped)
        paused_ms = sum(self._clock.ms(*pause, wait=False) for pause in self._pauses)
        return (whole_ms - paused_ms) / 1e3
