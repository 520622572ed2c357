"""Heads of any width side by side in one row for each token, as they travel."""

from __future__ import annotations

import torch
from torch import Tensor

Heads = tuple[int, int]
"""How many heads, and how wide each is."""


def heads_of(tensor: Tensor) -> Heads:
    """Return the number and the width of the heads of (tokens, heads, width)."""
    return tensor.shape[1], tensor.shape[2]


def flat_width(*heads: Heads) -> int:
    """Return the width of a row of these heads."""
    return sum(number * width for number, width in heads)


def flatten_heads(*tensors: Tensor) -> Tensor:
    """Put the heads of all tensors (tokens, heads, width) into one of (tokens, features)."""
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1)


def unflatten_heads(rows: Tensor, *heads: Heads) -> tuple[Tensor, ...]:
    """View (tokens, features) as tensors (tokens, heads, width), in the order of ``heads``."""
    parts = torch.split(rows, [flat_width(shape) for shape in heads], 1)
    return tuple(part.view(len(part), *shape) for part, shape in zip(parts, heads, strict=True))
