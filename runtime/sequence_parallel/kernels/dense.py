"""Attention by plain matrix products, on any device and in any dtype."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Piece,
    Pieces,
)


class DenseKernel:
    """Plain matrix products, for dtypes without a fused kernel (fp32 and fp64 on CUDA).

    Scores of one piece are held whole: (heads, queries, keys).
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """Yield the partial result of each piece, its scores held whole."""
        for piece in pieces:
            queries, keys, values = _dense_operands(q, k, v, piece)
            scores = _scores(queries, keys, causal, scale)
            lse = scores.logsumexp(-1)
            out = torch.exp(scores - lse.unsqueeze(-1)) @ values
            yield Partial(slice(piece.q0, piece.q1), out.transpose(0, 1), lse.transpose(0, 1))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of each piece, its scores computed again."""
        q, k, v, out, lse = attended.q, attended.k, attended.v, attended.out, attended.lse
        for piece in pieces:
            q0, q1, k0, k1 = piece
            queries, keys, values = _dense_operands(q, k, v, piece)
            gradient = dout[q0:q1].transpose(0, 1).to(queries.dtype)
            merged = out[q0:q1].transpose(0, 1).to(queries.dtype)
            scores = _scores(queries, keys, causal, scale)
            weights = torch.exp(scores - lse[q0:q1].transpose(0, 1).unsqueeze(-1))
            delta = (gradient * merged).sum(-1, keepdim=True)
            dscores = weights * (gradient @ values.transpose(1, 2) - delta) * scale
            shared = (k.shape[1], q.shape[1] // k.shape[1], k1 - k0, k.shape[2])
            dk = (dscores.transpose(1, 2) @ queries).view(shared).sum(1)
            dv = (weights.transpose(1, 2) @ gradient).view(shared).sum(1)
            yield PartialGradients(
                slice(q0, q1),
                slice(k0, k1),
                (dscores @ keys).transpose(0, 1),
                dk.transpose(0, 1),
                dv.transpose(0, 1),
            )


def _dense_operands(q: Tensor, k: Tensor, v: Tensor, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of a piece, (query heads, tokens, head_dim) in the accumulation dtype."""
    dtype = accumulation_dtype(q.dtype)
    group = q.shape[1] // k.shape[1]
    queries = q[piece.q0 : piece.q1].transpose(0, 1).to(dtype)
    keys, values = (
        tensor[piece.k0 : piece.k1].transpose(0, 1).to(dtype).repeat_interleave(group, 0)
        for tensor in (k, v)
    )
    return queries, keys, values


def _scores(queries: Tensor, keys: Tensor, causal: bool, scale: float) -> Tensor:
    scores = (queries @ keys.transpose(1, 2)) * scale
    if causal:
        tokens = scores.shape[-1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores
