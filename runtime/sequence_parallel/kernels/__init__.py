"""Attention kernels behind one interface: pieces in, partial results out.

Read ``base`` first, a kernel's arguments and results; then ``registry``, which has them by name,
and a file for each: ``flash``, ``cudnn``, ``flex`` and ``magi`` on CUDA, ``cpu``, and ``blocks``
for what no other computes.
"""

from __future__ import annotations

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
from seqplan.runtime.sequence_parallel.kernels.registry import (
    choose_kernel,
    choose_kernel_for_heads,
    explain_kernels,
    find_kernel,
)

__all__ = [
    "Attended",
    "BlockKernel",
    "CpuKernel",
    "Kernel",
    "Partial",
    "PartialGradients",
    "Piece",
    "Pieces",
    "Rows",
    "Scores",
    "choose_kernel",
    "choose_kernel_for_heads",
    "explain_kernels",
    "find_kernel",
]
