"""Errors that mean that a micro-batch does not fit, by the texts that libraries write."""

import pytest
import torch
import torch.distributed as dist

from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.out_of_memory import is_out_of_memory
from seqplan.profiler.measure.saved_memory import CudaAllocator
from seqplan.runtime.models.llama import ModelConfig

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
)
OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    dist.DistBackendError(NCCL + "Cuda failure 2 'out of memory'"),
    dist.DistBackendError(NCCL + "Cuda failure 'out of memory'"),
    dist.DistBackendError(NCCL + "Failed to CUDA calloc async 6291456 bytes"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
)
OTHERS = (
    dist.DistBackendError(NCCL + "Cuda failure 1 'invalid argument'"),
    dist.DistBackendError(NCCL),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    ValueError("out of memory"),
)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_errors_that_mean_it(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS)
def test_errors_that_do_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_message_of_the_cpu_allocator_is_recognized() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert is_out_of_memory(raised.value)


class Full(CudaAllocator):
    """A device on which a library raises ``error`` when its peak is requested."""

    def __init__(self, error: Exception) -> None:
        super().__init__(torch.device("cpu"))
        self._error = error

    def current_bytes(self) -> int:
        raise self._error


def bench(error: Exception) -> Bench:
    config = ModelConfig(hidden=16, layers=1, heads=2, kv_heads=2, ffn=16, vocab=10)
    return Bench(config, 1, torch.device("cpu"), torch.float32, 0, 1, allocator=Full(error))


def test_a_micro_batch_that_a_library_has_no_room_for_is_a_sample() -> None:
    point = DesignPoint("fit", (16,))
    for error in OUT_OF_MEMORY:
        sample = Measurer(bench(error)).measure(Scheme(), point)
        assert (sample.oom, sample.lengths) == (True, (16,))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        Measurer(bench(OTHERS[3])).measure(Scheme(), point)
