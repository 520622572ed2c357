"""Activations of a layer in host memory, from its forward to its backward.

On CUDA copies run on a separate stream, from and to pinned memory. When backward reaches a
layer, the layer before it starts on its way back, so that two layers at most are moving.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from seqplan.runtime.device_copy import copy_stream
from seqplan.runtime.errors import KeptResultChanged
from seqplan.runtime.saved_tensors import (
    count_kept,
    count_offloaded,
    detach_kept,
    identify_storage,
)

SMALLEST_BYTES = 1024
"""Smaller tensors stay on the device: copying them takes longer than it is worth."""


class HostStorage:
    """Memory on the device until its layer's forward ends, and then on the host.

    ``tensors``: views of it that have not been taken back yet.
    """

    __slots__ = ("__weakref__", "_device", "_host", "call", "tensors")

    def __init__(self, tensor: Tensor, call: OffloadedCall) -> None:
        self._device: Tensor | None = _view_storage(tensor)
        self._host: Tensor | None = None
        self.call = call
        self.tensors = 0

    def move(self) -> None:
        """Copy to the host."""
        assert self._device is not None
        count_offloaded(self._device)
        self._host = _copy_to_host(self._device)
        self._device = None

    def fetch(self) -> None:
        """Start to copy back to the device, if that has not begun."""
        if self._device is None and self._host is not None:
            self._device = _copy_to_device(self._host, self.call.device)

    def take(self) -> Tensor:
        """Return the bytes on the device, for use on its current stream."""
        self.call.fetch_with_previous()
        if self._device is None:  # taken before, by a backward that kept its graph
            self.fetch()
            self.call.record()
        self.call.wait()
        there = self._device
        assert there is not None
        self.tensors -= 1
        if self._host is not None and self.tensors <= 0:
            self._device = None
        return there


class HostTensor:
    """A kept view of a ``HostStorage``, with its sizes and its strides."""

    __slots__ = ("_place", "_storage")

    def __init__(self, tensor: Tensor, storage: HostStorage) -> None:
        self._place = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._storage = storage
        storage.tensors += 1

    def take(self) -> Tensor:
        """Return the tensor on the device."""
        tensor = self._storage.take().as_strided(*self._place)
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor


class OffloadedCall:
    """One forward of a layer whose activations go to the host."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._storages: weakref.WeakValueDictionary[
            tuple[StorageWeakRef, torch.dtype], HostStorage
        ] = weakref.WeakValueDictionary()
        self._kept: list[tuple[Tensor, int]] = []
        self._fetched = False
        self._copied: torch.cuda.Event | None = None
        self._previous = _LAST.get()

    def keep(self, tensor: Tensor) -> HostTensor | Tensor:
        """Return the form in which a tensor is kept: parameters and small ones as they are."""
        base = tensor if tensor._base is None else tensor._base
        parameter = isinstance(base, Parameter) or (base.is_leaf and base.requires_grad)
        if parameter or tensor.nbytes < SMALLEST_BYTES or not tensor.is_floating_point():
            count_kept(tensor)
            return tensor
        self.device = tensor.device
        # The tensor is held until ``move``, so that its storage stays the same.
        self._kept.append((detach_kept(tensor), tensor._version))
        identity = identify_storage(tensor), tensor.dtype
        storage = self._storages.get(identity) or HostStorage(tensor, self)
        self._storages[identity] = storage
        return HostTensor(tensor, storage)

    def move(self) -> None:
        """Copy all to the host. ``KeptResultChanged`` if a tensor was changed since it was kept."""
        for tensor, version in self._kept:
            if tensor._version != version:
                shape = tuple(tensor.shape)
                raise KeptResultChanged(f"kept tensor changed in place: {shape}. Use another mode")
        self._kept.clear()
        for storage in self._storages.values():
            storage.move()

    def fetch_with_previous(self) -> None:
        """Start to copy all back, and then the call before, whose backward comes next."""
        self._fetch()
        previous = None if self._previous is None else self._previous()
        if previous is not None:
            previous._fetch()
        self._previous = None

    def record(self) -> None:
        """Remember the copies so far as those to wait for."""
        if self.device.type == "cuda":
            self._copied = copy_stream(self.device, "offload").record_event()

    def wait(self) -> None:
        """Let the device's stream wait for the copies of this call."""
        if self._copied is not None:
            torch.cuda.current_stream(self.device).wait_event(self._copied)

    def _fetch(self) -> None:
        if not self._fetched:
            self._fetched = True
            for storage in self._storages.values():
                storage.fetch()
            self.record()


_LAST: ContextVar[weakref.ref[OffloadedCall] | None] = ContextVar("last call", default=None)
_CURRENT: ContextVar[OffloadedCall | None] = ContextVar("call that runs here", default=None)


@contextmanager
def offload() -> Iterator[OffloadedCall]:
    """Keep on the host what a forward within keeps for backward."""
    call = OffloadedCall()
    token = _CURRENT.set(call)
    try:
        with torch.autograd.graph.saved_tensors_hooks(call.keep, take):
            yield call
    finally:
        _CURRENT.reset(token)
    call.move()
    _LAST.set(weakref.ref(call))


def current_call() -> OffloadedCall | None:
    """Return the call that keeps tensors on the host here; None without one."""
    return _CURRENT.get()


def take(kept: HostTensor | Tensor) -> Tensor:
    """Return a kept tensor on the device."""
    return kept.take() if isinstance(kept, HostTensor) else kept


def _view_storage(tensor: Tensor) -> Tensor:
    """View all elements of a tensor's storage, without gradient."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return detach_kept(tensor).as_strided((elements,), (1,), 0)


def _copy_to_host(tensor: Tensor) -> Tensor:
    """Copy to pinned memory without waiting; on a CPU to other memory."""
    if not tensor.is_cuda:
        return tensor.clone()
    stream = copy_stream(tensor.device, "offload")
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)
    return host


def _copy_to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy back without waiting."""
    if device.type != "cuda":
        return host.clone()
    with torch.cuda.stream(copy_stream(device, "offload")):
        return host.to(device, non_blocking=True)
