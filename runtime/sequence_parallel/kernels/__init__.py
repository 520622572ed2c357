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
    """Return the kernel for the device, dtype and head dimension of queries ``tensor``.

    Flash attention on CUDA takes 16-bit heads of a multiple of 8 elements up to 256, from compute
    capability 8.0 on; the rest is computed by plain products.
    """
    if tensor.device.type == "cpu":
        return CpuKernel()
    if (
        tensor.device.type == "cuda"
        and tensor.dtype in (torch.bfloat16, torch.float16)
        and tensor.shape[-1] % 8 == 0
        and tensor.shape[-1] <= 256
        and torch.cuda.get_device_capability(tensor.device) >= (8, 0)
    ):
        return CudaFlashKernel()
    return DenseKernel()
