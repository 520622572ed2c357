"""The device that is measured: its name, its memory, its processor time."""

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
