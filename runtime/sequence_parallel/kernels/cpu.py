"""Attention on a CPU: the fused kernel that ships with torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Piece,
    Pieces,
    Scores,
    hidden_keys,
    query_blocks,
    same_width,
    view_batched,
)
from seqplan.runtime.sequence_parallel.kernels.requirements import Requirements, RequiringKernel


class CpuKernel(RequiringKernel):
    """The fused CPU kernel that ships with torch, one call for each piece.

    Of a causal piece with a window, or with more keys than queries, it takes a mask; calls are then
    of few rows and the keys that these see, so that little is computed that is hidden. Values of
    another width than keys are padded. It caps no scores: ``BlockKernel`` does.

    Its bf16 backward is slow on small pieces (0.65 ms against 0.1 ms in fp32 for 32 × 32 tokens
    and 8 heads), so that these are computed in fp32, which is also more exact.
    """

    name = "cpu"
    requirements = Requirements(device="cpu", dtypes=None)

    SMALL = 512

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield the partial result of each piece by separate calls."""
        width = v.shape[2]
        q, k, v = same_width(q, k, v)
        for (q0, q1, k0, k1), square, mask in _calls(pieces, scores, q.dtype):
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                view_batched(q, q0, q1),
                view_batched(k, k0, k1),
                view_batched(v, k0, k1),
                0.0,
                square,
                attn_mask=mask,
                scale=scores.scale,
            )
            yield Partial(slice(q0, q1), _view_packed(out)[..., :width], _view_packed(lse))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of each piece by separate calls."""
        key_width, value_width = attended.k.shape[2], attended.v.shape[2]
        tensors = same_width(dout, attended.q, attended.k, attended.v, attended.out)
        exact = attended.lse.dtype
        if scores.window is not None:  # keys are in several calls: converted once, not in each
            tensors = tuple(tensor.to(exact) for tensor in tensors)
        dtype = tensors[0].dtype
        for (q0, q1, k0, k1), square, mask in _calls(pieces, scores, dtype):
            operands = [
                view_batched(tensor, *rows)
                for tensor, rows in zip(
                    tensors, ((q0, q1), (q0, q1), (k0, k1), (k0, k1), (q0, q1)), strict=True
                )
            ]
            if dtype != exact and min(q1 - q0, k1 - k0) < self.SMALL:
                operands = [operand.to(exact) for operand in operands]
                mask = None if mask is None else mask.to(exact)
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *operands,
                view_batched(attended.lse, q0, q1),
                0.0,
                square,
                attn_mask=mask,
                scale=scores.scale,
            )
            yield PartialGradients(
                slice(q0, q1),
                slice(k0, k1),
                _view_packed(dq)[..., :key_width],
                _view_packed(dk)[..., :key_width],
                _view_packed(dv)[..., :value_width],
            )


class _Call(NamedTuple):
    """A call of the fused kernel: ``square`` causal, or with an additive mask, or with neither."""

    piece: Piece
    square: bool
    mask: Tensor | None


def _calls(pieces: Pieces, scores: Scores, dtype: torch.dtype) -> Iterator[_Call]:
    window = scores.window
    for piece in pieces:
        queries, keys = piece.q1 - piece.q0, piece.k1 - piece.k0
        if not scores.causal:
            yield _Call(piece, False, None)
        elif queries == keys and (window is None or window >= keys):
            yield _Call(piece, True, None)
        else:
            rows = 64 if window is not None and window <= 256 else 128
            for block in query_blocks(piece, rows, window):
                mask = _mask(block.q1 - block.q0, block.k1 - block.k0, rows, window, dtype)
                yield _Call(block, False, mask)


def _mask(rows: int, columns: int, most: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return an additive mask of ``dtype``: the kernel reads others as garbage, without a word.

    With a window it is the bottom-right corner of the largest that there is.
    """
    if window is None:
        return _additive(rows, columns, window, dtype)
    whole = _additive(most, most + window - 1, window, dtype)
    return whole[most - rows :, whole.shape[1] - columns :]


@lru_cache(maxsize=16)
def _additive(rows: int, columns: int, window: int | None, dtype: torch.dtype) -> Tensor:
    hidden = hidden_keys(rows, columns, window)
    return torch.zeros(rows, columns, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _view_packed(tensor: Tensor) -> Tensor:
    """View (1, heads, tokens, …) as (tokens, heads, …)."""
    return tensor.squeeze(0).transpose(0, 1)
