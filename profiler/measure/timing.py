"""Timing a call on all ranks at once, as often as it takes to be sure of it.

A call's time is that of its slowest rank. Before and after each repetition every rank reads how
fast its device is just then; see ``rescale_to_usual_speed``. Alone on a CPU it does so between
forward and backward, too. Elsewhere that would be felt: a CUDA device's host could not run ahead,
and other ranks would wait.

On CUDA a short call is run once more just before it is timed, without waiting in between: the host
is then as far ahead of the device as between micro-batches of a training step, or as far behind.
Timed from an idle device a call would contain the start of its first kernel, and of few layers
that stand for many that would be multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
import torch.distributed as dist

from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.device import cpu_ms
from seqplan.profiler.measure.stage import Call
from seqplan.profiler.measure.yardstick import Yardstick, warm_up
from seqplan.runtime.stopwatch import Clock

LEAST_REPEATS, MOST_REPEATS = 3, 9
ENOUGH_S = 0.25
"""A call is repeated until it has taken this long in a round, within the limits above."""

LEAD_IN_BELOW_S = 0.1
"""Calls shorter than this have a lead-in on CUDA; in longer ones a kernel's start is nothing."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of every repetition: forward and backward, forward, and a yardstick around.

    ``cpu_ms``: processor time of all threads in forward and backward; without meaning on CUDA,
    where the host waits for the device. ``host_ms``: until the host had started all of it; without
    meaning on a CPU.
    """

    whole_ms: tuple[float, ...]
    forward_ms: tuple[float, ...]
    yardstick_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    host_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Repetition:
    """Milliseconds of forward and backward, of forward, yardstick readings between, CPU, host."""

    whole_ms: float = 0.0
    forward_ms: float = 0.0
    readings: Sequence[float] = ()
    cpu_ms: float = 0.0
    host_ms: float = 0.0


class Timer:
    """Times calls on a bench; every rank makes one and times the same calls.

    A call of None, on a rank without work, takes no time. ``forget_gradients`` is called after each
    run, untimed. ``queued``: whether the device runs behind the host; by default CUDA does.
    """

    def __init__(
        self, bench: Bench, forget_gradients: Callable[[], None], *, queued: bool | None = None
    ) -> None:
        self._device, self._control_group = bench.device, bench.control_group
        self._read_between = bench.device.type == "cpu" and bench.world_size == 1
        self._clock = Clock(bench.device, processor_time=bench.processor_time)
        self._yardstick = Yardstick(bench.device, bench.dtype, self._clock)
        self._forget_gradients = forget_gradients
        self._queued = bench.device.type == "cuda" if queued is None else queued

    def times(self, call: Call | None, warm_up: int, most: int) -> Times:
        """Time a call, ``most`` times at most after ``warm_up`` runs that are not counted."""
        for _ in range(warm_up):
            took = self._once(call).whole_ms
        # On every rank the same number, from the time that the slowest rank sees.
        first_s = self.largest(took) / 1e3
        enough = ENOUGH_S / max(first_s, 1e-9)
        repeats = int(np.clip(enough, min(LEAST_REPEATS, most), most))
        lead_in = self._queued and first_s < LEAD_IN_BELOW_S
        rows = []
        before = self._read(call)
        for _ in range(repeats):
            once = self._once(call, lead_in=lead_in)
            after = self._read(call)
            speed = mean((before, *once.readings, after))
            rows.append((once.whole_ms, once.forward_ms, speed, once.cpu_ms, once.host_ms))
            before = after
        return Times(*zip(*find_slowest(rows, self._control_group), strict=True))

    def warm_up(self) -> None:
        """Keep a device that runs behind the host busy until its speed is steady; others not."""
        if self._queued:
            warm_up(self._yardstick.measure_sustained_ms)

    def _once(self, call: Call | None, *, lead_in: bool = False) -> _Repetition:
        """Run once, after an untimed run of it if there is a lead-in."""
        if self._control_group is not None:
            dist.barrier(group=self._control_group)
        if call is None:
            return _Repetition()
        if lead_in:
            call.backward(call.forward())
            self._forget_gradients()
        clock = self._clock
        started, busy, host_s = clock.mark(), -cpu_ms(), -time.perf_counter()
        result = call.forward()
        between = clock.mark()
        if self._read_between:
            busy += cpu_ms()
            readings, resumed = [self._yardstick.read()], clock.mark()
            busy -= cpu_ms()
        else:
            readings, resumed = [], between
        call.backward(result)
        ended = clock.mark()
        busy += cpu_ms()
        host_s += time.perf_counter()
        self._forget_gradients()
        forward_ms = clock.ms(started, between)
        whole_ms = forward_ms + clock.ms(resumed, ended)
        return _Repetition(whole_ms, forward_ms, readings, busy, 1e3 * host_s)

    def _read(self, call: Call | None) -> float:
        """Read the yardstick; nothing on a rank without work."""
        return 0.0 if call is None else self._yardstick.read()

    def largest(self, value: float) -> float:
        """Return the largest over all ranks, which all call it."""
        return find_slowest([(value,)], self._control_group)[0][0]


def find_slowest(
    rows: Sequence[tuple[float, ...]], group: dist.ProcessGroup | None
) -> list[tuple[float, ...]]:
    """Return the largest of each figure over all ranks of a group, None for one."""
    if group is None:
        return list(rows)
    tensor = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return [tuple(row) for row in tensor.tolist()]
