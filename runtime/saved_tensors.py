"""Bytes that autograd keeps for backward, counted as a forward saves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves


class SavedBytes:
    """Counts the storages that autograd keeps, each once, ``parameters`` apart."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        # A storage is identified by itself, not by its address, which fake tensors do not have.
        self._seen = {_identity(parameter) for parameter in parameters}
        self.total = 0

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Count tensors that autograd saves within, and those of ``count_kept``."""
        token = _COUNTER.set(self)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            _COUNTER.reset(token)

    def _pack(self, tensor: Tensor) -> Tensor:
        identity = _identity(tensor)
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
                counter._pack(leaf)


def _identity(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
