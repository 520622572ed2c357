"""Attention kernels by name, and which one a call runs on."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

import torch
from torch import Tensor

from seqplan.plans.extensions import list_extensions, load_extension
from seqplan.runtime.sequence_parallel.kernels.base import Kernel, Scores
from seqplan.runtime.sequence_parallel.kernels.blocks import BlockKernel
from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel
from seqplan.runtime.sequence_parallel.kernels.cudnn import CudnnKernel
from seqplan.runtime.sequence_parallel.kernels.flash import FA2, FA3, FA4, active_flash_kernel
from seqplan.runtime.sequence_parallel.kernels.flex import FlexKernel
from seqplan.runtime.sequence_parallel.kernels.magi import MagiKernel

KERNELS: tuple[Kernel, ...] = (
    *(FA2, FA3, FA4, CudnnKernel(), FlexKernel(), MagiKernel()),
    *(CpuKernel(), BlockKernel()),
)
"""Kernels of this package; the last supports every call."""


@cache
def list_added_kernels() -> tuple[Kernel, ...]:
    """List the kernels of installed packages, sorted by name.

    ``ValueError`` for an entry point of ``seqplan.kernels`` that is no ``Kernel`` of its name.
    """
    added = []
    for name in list_extensions("seqplan.kernels"):
        kernel = load_extension("seqplan.kernels", name)
        if not isinstance(kernel, Kernel) or isinstance(kernel, type) or kernel.name != name:
            raise ValueError(
                f"kernel {name!r}: its entry point must be a Kernel of this name. "
                "Repair or uninstall the package"
            )
        added.append(kernel)
    return tuple(added)


def find_kernel(name: str) -> Kernel:
    """Return the kernel of this name; ``ValueError`` suggests the nearest of all."""
    kernels = {kernel.name: kernel for kernel in (*KERNELS, *list_added_kernels())}
    if name not in kernels:
        near = get_close_matches(name.lower(), kernels, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"kernel {name!r}: unknown. {meant}There are {', '.join(kernels)}")
    return kernels[name]


def choose_kernel(q: Tensor, v: Tensor, scores: Scores, kernel: Kernel | None = None) -> Kernel:
    """Return the kernel of a call: ``kernel``, or the first that supports it if that is None.

    Without one: those of packages, the FlashAttention that is active at torch, and those that need
    nothing else. ``ValueError``, with its reason, if ``kernel`` does not support the call.
    """
    if kernel is not None:
        reason = kernel.find_unsupported(q, v, scores)
        if reason is not None:
            raise ValueError(
                f"kernel {kernel.name!r} does not support this attention: {reason}. "
                "Choose another, or none for the first that does"
            )
        return kernel
    candidates = (*list_added_kernels(), active_flash_kernel(), *KERNELS[-2:])
    return next(
        candidate for candidate in candidates if candidate.find_unsupported(q, v, scores) is None
    )


def choose_kernel_for_heads(
    width: int, dtype: torch.dtype, device: torch.device, kernel: Kernel | None = None
) -> Kernel:
    """Return the kernel of causal attention with heads of ``width`` elements; see above."""
    heads = torch.empty(0, 1, width, dtype=dtype, device=device)
    return choose_kernel(heads, heads, Scores(1.0, causal=True), kernel)


def explain_kernels(q: Tensor, v: Tensor, scores: Scores) -> dict[str, str | None]:
    """Return why each kernel does not support a call, by name; None for those that do."""
    return {
        kernel.name: kernel.find_unsupported(q, v, scores)
        for kernel in (*list_added_kernels(), *KERNELS)
    }
