"""How large the checks are: by device, and small enough for seconds if that is requested."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.costs.analytic.gpus.hardware import Hardware
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.saved_memory import CudaAllocator
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.sequence_parallel.kernels import (
    Kernel,
    Scores,
    choose_kernel,
    choose_kernel_for_heads,
    explain_kernels,
)

SHARES = {
    "attention": 0.15,
    "rates": 0.15,
    "profile": 0.4,
    "memory": 0.15,
    "step": 0.15,
}
"""The checks in their order, and what part of the time each is given."""

_TINY = ModelSizes(hidden=64, layers=8, heads=4, kv_heads=2, ffn=96, vocab=128)


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """The verified model and device, and the time limit.

    ``seconds``: of all checks together; ``quick``: small sizes, times shown without limits;
    ``hardware``: the analytic model's data sheet of the device, None if it is not listed;
    ``groups``: of all ranks, None if there is one; ``kernel``: of all attention that it supports.
    """

    device: torch.device
    seconds: float
    quick: bool = False
    hardware: Hardware | None = None
    rank: int = 0
    world_size: int = 1
    groups: Communicators | None = None
    kernel: Kernel | None = None

    def choose_kernel(self, q: Tensor, v: Tensor, scores: Scores) -> Kernel:
        """Return the kernel of a call: ``kernel`` if it supports it, else the first that does."""
        supported = self.kernel is not None and not self.kernel.find_unsupported(q, v, scores)
        return choose_kernel(q, v, scores, self.kernel if supported else None)

    def choose_model_kernel(self) -> Kernel:
        """Return the kernel of the model's attention; ``ValueError`` if ``kernel`` is not one."""
        return choose_kernel_for_heads(self.model.head_dim, self.dtype, self.device, self.kernel)

    def explain_kernels(self) -> dict[str, str | None]:
        """Return why each kernel does not support the model's attention, by name, or None."""
        heads = torch.empty(0, 1, self.model.head_dim, dtype=self.dtype, device=self.device)
        return explain_kernels(heads, heads, Scores(1.0, causal=True))

    def make_bench(self, layers: int, config: ModelConfig | None = None) -> Bench:
        """Make one rank's bench for ``layers`` of a model, ``model`` if None."""
        return Bench(
            config or self.model,
            layers,
            self.device,
            self.dtype,
            allocator=CudaAllocator(self.device) if self.cuda else None,
            kernel=self.kernel,
        )

    def seconds_of(self, check: str) -> float:
        """Return the time that a check is given."""
        return self.seconds * SHARES[check]

    @property
    def cuda(self) -> bool:
        """Whether the device is a CUDA one."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """What models are trained in here: bf16 on CUDA, fp32 elsewhere."""
        return torch.bfloat16 if self.cuda else torch.float32

    @property
    def model(self) -> ModelConfig:
        """The model whose layers are run: llama3-8b on CUDA, small ones elsewhere."""
        sizes = (
            _TINY
            if self.quick
            else ModelSizes.from_mapping(MODELS["llama3-8b" if self.cuda else "small"])
        )
        return ModelConfig(**{name: getattr(sizes, name) for name in SIZES})
