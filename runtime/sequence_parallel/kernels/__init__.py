"""Attention kernels behind one interface: pieces in, partial results out.

Read ``base`` first, a kernel's arguments and results; then ``cpu``, ``blocks`` and
``cuda_flash``, one kernel each. ``kernel_for`` chooses among them and those of packages.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from seqplan.plans.extensions import list_extensions, load_extension
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Kernel,
    Partial,
    PartialGradients,
    Piece,
    Pieces,
    Rows,
    Scores,
)
from seqplan.runtime.sequence_parallel.kernels.blocks import BlockKernel
from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel
from seqplan.runtime.sequence_parallel.kernels.cuda_flash import CudaFlashKernel

__all__ = [
    "Attended",
    "BlockKernel",
    "CpuKernel",
    "CudaFlashKernel",
    "Kernel",
    "Partial",
    "PartialGradients",
    "Piece",
    "Pieces",
    "Rows",
    "Scores",
    "kernel_for",
    "list_kernels",
]


KERNELS: tuple[Kernel, ...] = (CudaFlashKernel(), CpuKernel(), BlockKernel())
"""Kernels on torch alone, the preferred ones first; the last supports every call."""


@cache
def list_kernels() -> tuple[Kernel, ...]:
    """List the kernels of installed packages, sorted by name, and then ``KERNELS``.

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
    return (*added, *KERNELS)


def kernel_for(q: Tensor, v: Tensor, *, softcap: float | None = None) -> Kernel:
    """Return the first kernel that supports the queries, values and soft cap."""
    return next(
        kernel for kernel in list_kernels() if kernel.find_unsupported(q, v, softcap) is None
    )
