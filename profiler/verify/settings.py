"""How large the checks are: by device, and small enough for seconds if that is requested."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seqplan.costs.analytic.hardware import Hardware
from seqplan.costs.model_sizes import MODELS, SIZES, ModelSizes
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.models.llama import ModelConfig

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
    ``groups``: of all ranks, None if there is one.
    """

    device: torch.device
    seconds: float
    quick: bool = False
    hardware: Hardware | None = None
    rank: int = 0
    world_size: int = 1
    groups: Communicators | None = None

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
