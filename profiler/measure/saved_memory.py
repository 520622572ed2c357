"""Memory of a micro-batch: what autograd keeps for backward, and an allocator's peak."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from seqplan.plans.recomputation import count_offloaded, split_mode
from seqplan.profiler.measure.stage import Call, StageWork
from seqplan.runtime.saved_tensors import SavedBytes


class Allocator(Protocol):
    """Readings of a device's allocator, in bytes."""

    def current_bytes(self) -> int:
        """Return the bytes in use now."""

    def reset_peak(self) -> None:
        """Forget the peak."""

    def peak(self) -> int:
        """Return the most bytes in use since ``reset_peak``."""

    def peak_reserved_bytes(self) -> int:
        """Return the most bytes taken from the device since ``reset_peak``, in use or not."""


class CudaAllocator:
    """torch's caching allocator on a CUDA device: bytes of tensors, and of its segments.

    ``reset_peak`` gives back what it caches, so that segments are those of what runs next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current_bytes(self) -> int:
        """See ``Allocator``."""
        return torch.cuda.memory_allocated(self._device)

    def reset_peak(self) -> None:
        """See ``Allocator``."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """See ``Allocator``."""
        return torch.cuda.max_memory_allocated(self._device)

    def peak_reserved_bytes(self) -> int:
        """See ``Allocator``."""
        return torch.cuda.max_memory_reserved(self._device)


def count_saved(call: Call, parameters: Iterable[Tensor]) -> SavedBytes:
    """Count bytes kept for backward, which is not run; without what checkpointing drops."""
    saved = SavedBytes(parameters)
    with saved.hooks():
        call.forward()
    return saved


def count_saved_bytes(call: Call, parameters: Iterable[Tensor]) -> int:
    """Count the bytes of ``count_saved`` on the device."""
    return count_saved(call, parameters).total


def peak_bytes(call: Call, allocator: Allocator) -> int:
    """Read the allocator's peak over forward and backward, above what there was before.

    Parameters and, if the call has run before without its gradients being cleared, gradients are
    there before: they are resident in training and counted as such.
    """
    before = allocator.current_bytes()
    allocator.reset_peak()
    call.backward(call.forward())
    return allocator.peak() - before


@dataclass(frozen=True, slots=True)
class MicroBatchMemory:
    """Bytes of a micro-batch on this rank: kept for backward, and the allocator's peaks.

    ``ends_saved`` includes what backward holds of one layer while it computes it again, and of a
    second one that is on its way back from the host. ``host``: kept in host memory.
    ``allocated`` and ``reserved``: all that the process had in use and had taken from the device at
    the higher of the peaks.
    """

    layers_saved: float = 0.0
    ends_saved: float = 0.0
    layers_peak: float = 0.0
    ends_peak: float = 0.0
    allocated: float = 0.0
    reserved: float = 0.0
    host: float = 0.0

    @classmethod
    def of(
        cls, work: StageWork | None, layers: int, allocator: Allocator | None
    ) -> MicroBatchMemory:
        """Run every call of a stage of ``layers`` layers; nothing on a rank without work."""
        if work is None:
            return cls()
        stage = work.stage
        saved = count_saved(work.layers, stage.parameters())
        layers_saved = saved.total
        ends_saved = count_saved_bytes(work.alone, stage.parameters())
        again = 0.0
        if work.whole is not None:
            again = count_saved_bytes(work.whole, stage.parameters()) - layers_saved / layers
        if offload_layers := split_mode(stage.config.recompute)[1]:
            again += saved.offloaded / count_offloaded(offload_layers, layers)
        peaks = [0, 0]
        fullest = (0, 0)
        for index, call in enumerate((work.layers, work.alone)):
            call.backward(call.forward())  # its gradients stay, as between micro-batches
            if allocator is not None:
                peaks[index] = peak_bytes(call, allocator)
                fullest = max(fullest, (allocator.peak(), allocator.peak_reserved_bytes()))
            stage.forget_gradients()
        return cls(
            layers_saved,
            ends_saved + max(again, 0.0),
            layers_peak=peaks[0],
            ends_peak=peaks[1],
            allocated=fullest[0],
            reserved=fullest[1],
            host=saved.offloaded,
        )
