"""Rotary embeddings whose angles depend on how long a document is.

Of kind ``dynamic`` and ``longrope``: transformers reads the length off the largest position of a
call, which on a rank is that of other documents too, or of a part of one. Here every document has
the angles that it has alone, by its planned length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqplan.runtime.huggingface.attention import LayerAttention

BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Kinds whose angles depend on a document's length, beyond a limit."""


def rope_types(module: nn.Module) -> list[str]:
    """Return the kinds of rotary embedding of a module; empty if it is no such embedding."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, str):
        return [kinds]
    return [str(kind) for kind in kinds.values()] if isinstance(kinds, dict) else []


def rope_limit(module: nn.Module) -> int | None:
    """Return the longest document whose angles are not changed for its length; None if all."""
    by_length = BY_LENGTH & set(rope_types(module))
    if not by_length:
        return None
    rotary: Any = module
    limits = [int(rotary.original_max_seq_len)] if "dynamic" in by_length else []
    if "longrope" in by_length:
        parameters = rotary.config.rope_parameters
        several = "original_max_position_embeddings" not in parameters  # one for each layer type
        for entry in parameters.values() if several else [parameters]:
            if "original_max_position_embeddings" in entry:
                limits.append(int(entry["original_max_position_embeddings"]))
    return min(limits)


def rotate_by_document(model: nn.Module, layers: LayerAttention) -> None:
    """Let the embeddings of ``model`` go by documents where ``layers`` knows their lengths."""
    for module in model.modules():
        limit = rope_limit(module)
        if limit is None:
            continue
        original = module.forward
        if isinstance(original, partial) and original.func is _by_document:  # of a closed job
            original = original.args[0]
        module.forward = partial(_by_document, original, layers, limit)


def _by_document(
    original: Callable[..., tuple[Tensor, Tensor]],
    layers: LayerAttention,
    limit: int,
    x: Tensor,
    position_ids: Tensor,
    *more: Any,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines (1, rows, d) at positions, grouped by document length.

    All up to ``limit`` are of one kind.
    """
    lengths = layers.lengths
    if lengths is None:
        return original(x, position_ids, *more, **options)
    if len(lengths) < position_ids.shape[1]:  # a rank without a token computes one
        lengths = nn.functional.pad(lengths, (0, position_ids.shape[1] - len(lengths)))
    parts: list[tuple[Tensor, Tensor]] = []
    rows: list[Tensor] = []
    kinds = lengths.clamp(min=limit)
    for length in sorted(set(kinds.tolist())):
        of_length = torch.nonzero(kinds == length)[:, 0]
        # A short call first: what an earlier document has set for its length is set back.
        original(x, position_ids.new_zeros(1, 1), *more, **options)
        last = position_ids.new_full((1, 1), length - 1 if length > limit else 0)
        positions = torch.cat([position_ids[:, of_length], last], 1)
        cos, sin = original(x, positions, *more, **options)
        parts.append((cos[:, :-1], sin[:, :-1]))
        rows.append(of_length)
    order = torch.cat(rows).argsort()
    cos, sin = (torch.cat(values, 1)[:, order] for values in zip(*parts, strict=True))
    return cos, sin
