"""Attention kernels behind one interface: pieces in, partial results out.

Read ``base`` first, a kernel's arguments and results; then ``cpu``, ``blocks`` and
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
]


def kernel_for(q: Tensor, v: Tensor, *, softcap: float | None = None) -> Kernel:
    """Return the kernel for the device, dtype and head dimensions of queries and values.

    Flash attention on CUDA takes 16-bit heads of a multiple of 8 elements up to 256, from compute
    capability 8.0 on; no fused kernel caps scores: the rest is computed by plain products.
    """
    if softcap is not None:
        return BlockKernel()
    if q.device.type == "cpu":
        return CpuKernel()
    width = max(q.shape[-1], v.shape[-1])
    if (
        q.device.type == "cuda"
        and q.dtype in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    ):
        return CudaFlashKernel()
    return BlockKernel()
