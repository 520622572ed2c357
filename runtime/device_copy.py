"""Copies from the host to a device that no thread waits for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes that a packed array starts at a multiple of."""

TOKEN_BYTES = 64
"""Expected bytes of a token in a packed copy: ids, labels, positions, lengths, weight and more."""


def copy_to_device(values: Tensor | npt.NDArray[Any], device: torch.device | str) -> Tensor:
    """Copy to a device: to CUDA from pinned memory, in the order of its stream, without waiting.

    On a CPU the tensor itself, if it is one.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def index_device(device: torch.device | str) -> torch.device:
    """Return the device with its number: other threads may have another current one."""
    device = torch.device(device)
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


class PackedCopy:
    """Many arrays in one copy to ``device``, on a separate stream, without waiting.

    ``capacity``: bytes of all arrays together, as expected; more take another copy. The tensors of
    ``add`` have their values after ``start``, on streams that have called ``wait``. On a CPU
    nothing is copied.
    """

    def __init__(self, device: torch.device | str, capacity: int) -> None:
        self._device = torch.device(device)
        self._capacity = capacity
        self._hosts: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._used = 0
        self._copied: torch.cuda.Event | None = None

    def add(self, values: Tensor | npt.NDArray[Any]) -> Tensor:
        """Return the tensor on the device that will have these values."""
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        if self._device.type != "cuda":
            return tensor.to(self._device)
        start = self._reserve(tensor.nbytes)
        host, there = (
            part[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for part in (self._hosts[-1], self._copies[-1])
        )
        host.copy_(tensor)
        return there

    def start(self) -> None:
        """Start the copy; nothing is added afterwards."""
        if not self._hosts:
            return
        stream = copy_stream(self._device)
        with torch.cuda.stream(stream):
            for host, there in zip(self._hosts, self._copies, strict=True):
                there.copy_(host, non_blocking=True)
        self._copied = stream.record_event()
        self._hosts.clear()  # torch keeps pinned memory until it is copied

    def wait(self) -> None:
        """Let the current stream wait for the copy, and keep its memory until then."""
        if self._copied is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._copied)
        for there in self._copies:
            there.record_stream(stream)

    def _reserve(self, size: int) -> int:
        """Return the start of ``size`` bytes in the last part, which may be new."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if not self._hosts or start + size > len(self._hosts[-1]):
            room = max(self._capacity, size)
            self._hosts.append(torch.empty(room, dtype=torch.uint8, pin_memory=True))
            with torch.cuda.stream(copy_stream(self._device)):
                self._copies.append(torch.empty(room, dtype=torch.uint8, device=self._device))
            start = 0
        self._used = start + size
        return start


@lru_cache
def copy_stream(device: torch.device, purpose: str = "arrays") -> torch.cuda.Stream:
    """Return a stream for copies, always the same one for a device and purpose."""
    make: Any = torch.cuda.Stream
    stream: torch.cuda.Stream = make(device)
    return stream
