"""What kernels require of a call, declared by each and checked here for all.

A call is checked once, when its kernel is chosen (``registry``): a kernel itself takes any call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels.base import Scores

HALF = (torch.bfloat16, torch.float16)
"""Dtypes of tensor cores' kernels."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a kernel.

    ``device``: type; ``dtypes``: all if None; ``capabilities``: major ones of CUDA devices, 8 and
    later if None; ``softcap``, ``masks``: whether it caps scores, and has windows and chunks;
    ``multiple``, ``narrowest``, ``widest``: of a head's elements; ``widths``: the only ones, equal
    for keys and values, any if None; ``module``: imported by it, none if empty.
    """

    device: str = "cuda"
    dtypes: tuple[torch.dtype, ...] | None = HALF
    capabilities: tuple[int, ...] | None = None
    softcap: bool = False
    masks: bool = True
    multiple: int = 1
    narrowest: int = 1
    widest: int | None = None
    widths: tuple[int, ...] | None = None
    module: str = ""

    def find_unmet(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """Return the first requirement that a call does not meet, as a reason; None if it does."""
        if scores.softcap is not None and not self.softcap:
            return "scores are capped"
        if scores.window is not None and not self.masks:
            return "the mask has a window or chunks"
        if q.device.type != self.device:
            return f"the device is {q.device.type}"
        if self.dtypes is not None and q.dtype not in self.dtypes:
            return f"the dtype is {q.dtype}"
        reason = self._find_unmet_width(q.shape[-1], v.shape[-1])
        if reason is None and self.device == "cuda":
            reason = self._find_unmet_capability(*torch.cuda.get_device_capability(q.device))
        if reason is None and self.module and not has_module(self.module):
            reason = f"{self.module} is not installed"
        return reason

    def _find_unmet_width(self, keys: int, values: int) -> str | None:
        widest = max(keys, values)
        if self.widths is not None and (keys != values or keys not in self.widths):
            known = " or ".join(map(str, self.widths))
            return f"heads have {keys} and {values} elements, not {known} both"
        if min(keys, values) < self.narrowest:
            return f"heads have {min(keys, values)} elements, fewer than {self.narrowest}"
        if widest % self.multiple:
            return f"heads have {widest} elements, not a multiple of {self.multiple}"
        if self.widest is not None and widest > self.widest:
            return f"heads have {widest} elements, more than {self.widest}"
        return None

    def _find_unmet_capability(self, major: int, minor: int) -> str | None:
        if self.capabilities is None:
            return None if major >= 8 else f"the compute capability is {major}.{minor}, below 8.0"
        if major in self.capabilities:
            return None
        known = " or ".join(f"{one}.x" for one in self.capabilities)
        return f"the compute capability is {major}.{minor}, not {known}"


class RequiringKernel:
    """A kernel that supports every call that meets its requirements."""

    requirements: Requirements

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """As ``Kernel``: the first unmet requirement."""
        return self.requirements.find_unmet(q, v, scores)


@cache
def has_module(name: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # of the package that it is in
        return False
