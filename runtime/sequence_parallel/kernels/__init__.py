"""Attention kernels behind one interface: pieces in, partial results out.

Read ``base`` first, which says what a kernel is given and gives back; then ``cpu``, ``dense`` and
``cuda_flash``, one kernel each. ``kernel_for`` chooses among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Kernel,
    Partial,
    PartialGradients,
    Piece,
    Pieces,
    Rows,
)
from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel
from seqplan.runtime.sequence_parallel.kernels.cuda_flash import CudaFlashKernel
from seqplan.runtime.sequence_parallel.kernels.dense import DenseKernel

__all__ = [
    "Attended",
    "CpuKernel",
    "CudaFlashKernel",
    "DenseKernel",
    "Kernel",
    "Partial",
    "PartialGradients",
    "Piece",
    "Pieces",
    "Rows",
    "kernel_for",
]


def kernel_for(tensor: Tensor) -> Kernel:
    """Return the kernel for the device and dtype of ``tensor``."""
    if tensor.device.type == "cpu":
        return CpuKernel()
    if tensor.device.type == "cuda" and tensor.dtype in (torch.bfloat16, torch.float16):
        return CudaFlashKernel()
    return DenseKernel()
