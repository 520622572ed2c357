"""Rates that the device sustains in attention, products and passing over memory.

They are shown next to the analytic model's values of a listed device, without a limit: estimates
state their errors themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from seqplan.costs.analytic.gpus.attention_rates import RATES
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import Hardware
from seqplan.costs.analytic.gpus.kernels import (
    BACKWARD_FLOPS,
    attention_kernel_ms,
    matmul_ms,
    memory_ms,
)
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.sequence_parallel.kernels import Attended, Piece, Scores
from seqplan.runtime.stopwatch import Clock

HEADS, WIDTH = 32, 128
"""Of the attention that is timed, as Llama 3's."""

FIRST_PART = 0.3
"""Part of a rate's time in which the device comes to its steady speed and nothing is counted."""


def find_data_sheet(name: str, memory_bytes: float) -> Hardware | None:
    """Return the data sheet of a CUDA device by name and memory, or None."""
    words = name.lower().replace("-", " ").split()
    for hardware in DEVICES.values():
        kind, *rest = hardware.name.split("-")
        pcie = "pcie" in rest
        if kind not in words or pcie != ("pcie" in words) or "500w" in rest:
            continue
        # What a device states is a little more or less than what it is sold with.
        if 0.9 * hardware.memory_bytes <= memory_bytes <= 1.1 * hardware.memory_bytes:
            return hardware
    return None


def check_rates(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Time every rate for its part of the time."""
    rates = list(_rates(settings))
    seconds = 0.01 if settings.quick else settings.seconds_of("rates") / len(rates)
    figures = []
    for group, name, work, unit, call, assumed_ms in rates:
        ms = _time_sustained_ms(settings.device, call, seconds)
        assumed = None if assumed_ms is None else work / assumed_ms
        rate = work / ms if ms > 0 else math.inf
        figures.append(Figure(group, name, rate, unit, assumed=assumed))
    if settings.hardware is None:
        return figures, ["the analytic model lists no such device: nothing to compare with"]
    return figures, [f"model: what the analytic model assumes of {settings.hardware.name}"]


Rate = tuple[str, str, float, str, Callable[[], object], float | None]
"""Group, name, work of a call (TFLOP·ms/s or GB·ms/s: over ms it is the rate), unit, the call, and
the milliseconds that the analytic model predicts."""


def _rates(settings: VerifySettings) -> Iterator[Rate]:
    hardware = settings.hardware
    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    if settings.quick:
        sizes, lengths, elements = (64,), (64,), 10**4
    elif settings.cuda:
        sizes, lengths, elements = (2048, 4096, 8192, 16384), (1024, 4096, 16384, 32768), 10**9
    else:
        sizes, lengths, elements = (512, 1024, 2048), (512, 2048), 10**7
    for size in sizes:
        yield _product(settings, size, hardware)
    for length in lengths:
        yield from _attention(settings, length, hardware)
    source = torch.empty(elements, dtype=settings.dtype, device=settings.device).zero_()
    target = torch.empty_like(source)
    moved = 2 * source.numel() * source.element_size()
    yield (
        "memory, read and written",
        f"copy of {moved / 2e6:,.2f} MB",
        moved / 1e6,
        "GB/s",
        lambda: target.copy_(source),
        None if hardware is None else float(memory_ms(hardware, moved)),
    )


def _product(settings: VerifySettings, size: int, hardware: Hardware | None) -> Rate:
    one, other, result = (
        torch.randn(size, size, device=settings.device, dtype=settings.dtype) for _ in range(3)
    )
    return (
        "matrix products",
        f"{size} × {size} × {size}",
        2 * size**3 / 1e9,
        "TFLOP/s",
        lambda: torch.mm(one, other, out=result),
        None if hardware is None else float(matmul_ms(hardware, size, size, size)),
    )


def _attention(settings: VerifySettings, length: int, hardware: Hardware | None) -> Iterator[Rate]:
    heads = 2 if settings.quick else HEADS
    shape = (length, heads, WIDTH)
    q, k, v, dout = (
        torch.randn(shape, device=settings.device, dtype=settings.dtype) for _ in range(4)
    )
    scores, pieces = Scores(WIDTH**-0.5, causal=True), (Piece(0, length, 0, length),)
    kernel = settings.choose_kernel(q, v, scores)
    if hardware is not None:
        known = (hardware.generation, kernel.name) in RATES
        hardware = replace(hardware, attention_kernel=kernel.name) if known else None
    (partial,) = kernel.forward(q, k, v, pieces, scores)
    attended = Attended(q, k, v, partial.out.contiguous(), partial.lse.contiguous())
    calls: dict[bool, Callable[[], object]] = {
        False: lambda: list(kernel.forward(q, k, v, pieces, scores)),
        True: lambda: list(kernel.backward(dout, attended, pieces, scores)),
    }
    for backward, call in calls.items():
        assumed_ms = None
        if hardware is not None:
            assumed_ms = float(
                attention_kernel_ms(
                    hardware, [length], [length], heads, WIDTH, causal=True, backward=backward
                )
            )
        yield (
            f"causal attention, {'backward' if backward else 'forward'}",
            f"{length:,} tokens, {heads} heads × {WIDTH}",
            2 * heads * WIDTH * length**2 * (BACKWARD_FLOPS if backward else 1.0) / 1e9,
            "TFLOP/s",
            call,
            assumed_ms,
        )


def _time_sustained_ms(device: torch.device, call: Callable[[], object], seconds: float) -> float:
    """Call without a pause for ``seconds``; milliseconds of a call once the speed is steady."""
    clock = Clock(device)
    call()
    started, host_started = clock.mark(), time.perf_counter()
    call()
    once_ms = clock.ms(started, clock.mark())
    # A device that states no time is not called more often than the host can.
    once_ms = max(once_ms, 1e3 * (time.perf_counter() - host_started), 1e-3)
    batch = max(1, int(20.0 / once_ms))  # a wait for the device comes to a few per cent at most
    until = time.monotonic() + seconds * FIRST_PART
    while time.monotonic() < until:
        _batch_ms(clock, call, batch)
    spent_ms, calls = 0.0, 0
    until = time.monotonic() + seconds * (1 - FIRST_PART)
    while not calls or time.monotonic() < until:
        spent_ms += _batch_ms(clock, call, batch)
        calls += batch
    return spent_ms / calls


def _batch_ms(clock: Clock, call: Callable[[], object], calls: int) -> float:
    started = clock.mark()
    for _ in range(calls):
        call()
    return clock.ms(started, clock.mark())
