"""Which errors mean that a micro-batch does not fit: torch's, and those of libraries below."""

from __future__ import annotations

import re

import torch

_TEXTS = re.compile(
    r"out of memory"  # the allocator, a kernel's launch, NCCL's "Cuda failure 2 'out of memory'"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|Failed to CUDA (?:host )?(?:calloc|malloc|alloc)"  # NCCL, of its buffers
    r"|can't allocate memory",  # the CPU's allocator
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that there was no memory left.

    cuBLAS, cuDNN and NCCL allocate next to torch, and raise a ``RuntimeError`` (NCCL a
    ``DistBackendError``) with the reason in its text. "Unhandled cuda error" alone is no reason.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _TEXTS.search(str(error)) is not None
