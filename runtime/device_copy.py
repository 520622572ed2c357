"""Copies from the host to a device that no thread waits for."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def copy_to_device(values: Tensor | npt.NDArray[Any], device: torch.device | str) -> Tensor:
    """Copy to a device: to CUDA from pinned memory, in the order of its stream, without waiting.

    On a CPU the tensor itself, if it is one.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
