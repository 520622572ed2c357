"""Bytes that autograd keeps for backward, counted as a forward saves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves


class SavedBytes:
    """Counts the storages that autograd keeps, each once, ``parameters`` apart.

    ``total`` on the device; ``offloaded`` in host memory.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # A storage is identified by itself, not by its address, which fake tensors do not have.
        self._seen = {identify_storage(parameter) for parameter in parameters}
        self.total = 0
        self.offloaded = 0

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Count tensors that autograd saves within, and those of ``count_kept``."""
        token = _COUNTER.set(self)
        try:
            # Detached: an output that its node keeps would never be freed without a backward.
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._count(tensor).detach(), lambda tensor: tensor
            ):
                yield
        finally:
            _COUNTER.reset(token)

    def _count(self, tensor: Tensor) -> Tensor:
        identity = identify_storage(tensor)
        if identity not in self._seen:
            self._seen.add(identity)
            self.total += tensor.untyped_storage().nbytes()
        return tensor


_COUNTER: ContextVar[SavedBytes | None] = ContextVar("counter of saved bytes", default=None)


def count_kept(results: object) -> None:
    """Count the tensors in ``results``, which are kept for backward by others than autograd."""
    counter = _COUNTER.get()
    if counter is not None:
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor):
                counter._count(leaf)


def count_offloaded(tensor: Tensor) -> None:
    """Count a tensor that is kept for backward in host memory."""
    counter = _COUNTER.get()
    if counter is not None:
        counter.offloaded += tensor.nbytes


def detach_kept(tensor: Tensor) -> Tensor:
    """Detach a tensor to keep it, with its version, also below autograd."""
    key: Any = torch._C.DispatchKey.ADInplaceOrView
    with torch._C._SetExcludeDispatchKeyGuard(key, False):
        return tensor.detach()


def identify_storage(tensor: Tensor) -> StorageWeakRef:
    """Identify a tensor's storage, also of fake tensors, which have no address."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
