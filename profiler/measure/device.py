"""The device that is measured: its name, its memory, its clock."""

from __future__ import annotations

import time

import torch


def device_name(device: torch.device) -> str:
    """Return the device's name in samples."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    threads = torch.get_num_threads()
    return f"{names[0] if names else 'CPU'}, {threads} thread{'s' * (threads > 1)} a rank"


def capacity_bytes(device: torch.device) -> int:
    """Return the memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    with open("/proc/meminfo", encoding="utf-8") as file:
        kibibytes = next(int(line.split()[1]) for line in file if line.startswith("MemTotal"))
    return kibibytes * 1024


def context_bytes(device: torch.device) -> int:
    """Return the bytes of the device's memory taken besides this process's tensors.

    After measuring: the CUDA context, loaded kernels, buffers of collectives, other processes. On a
    CPU 0, as ``capacity_bytes`` is not all for one process there.
    """
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def cpu_ms() -> float:
    """Return milliseconds of processor time that all threads of this process have had."""
    return time.process_time() * 1e3


class Clock:
    """Device events on CUDA, the wall elsewhere.

    ``processor_time``: on a CPU, seconds of processor time of all threads of this process instead.
    """

    def __init__(self, device: torch.device, *, processor_time: bool = False) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = time.process_time if processor_time else time.perf_counter

    def mark(self) -> float | torch.cuda.Event:
        """Mark the present, on the current stream."""
        if not self._cuda:
            return self._seconds()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms(self, start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
        """Return milliseconds between two marks; waits for the later."""
        if isinstance(start, float) or isinstance(end, float):
            return (end - start) * 1e3  # type: ignore[operator]
        end.synchronize()
        return float(start.elapsed_time(end))
