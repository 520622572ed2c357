"""Layers that number the rows of a call by themselves, and their correction.

Llama 4 scales the queries of layers without rotary embedding by their place in the row of a call,
which is their position only where a row is one document in order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def numbers_rows(module: nn.Module) -> bool:
    """Return whether ``module`` is a layer whose numbering is known, and corrected."""
    layer: Any = module
    return (
        type(module).__name__ == "Llama4TextAttention"
        and bool(layer.attn_temperature_tuning)
        and not layer.use_rope
    )


def scale_by_position(module: nn.Module, q: Tensor, positions: Tensor) -> Tensor:
    """Scale queries (rows, heads, d) by their positions instead of by their rows."""
    rows = torch.arange(len(q), device=q.device)
    ratio = _temperature(module, positions) / _temperature(module, rows)
    return (q * ratio[:, None, None]).to(q.dtype)


def _temperature(layer: Any, positions: Tensor) -> Tensor:
    steps = torch.floor((positions.float() + 1.0) / layer.floor_scale)
    temperature: Tensor = torch.log1p(steps) * layer.attn_scale + 1.0
    return temperature
