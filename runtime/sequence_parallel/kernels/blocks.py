"""Attention by matrix products over blocks, on any device and in any dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Piece,
    Pieces,
    Scores,
    hidden_keys,
    query_blocks,
)


class BlockKernel:
    """Matrix products over blocks of queries and keys, for what no fused kernel computes.

    That is soft-capped scores, and fp32 and fp64 on CUDA. Scores of a few rows of queries are held
    at a time; tanh is computed again in backward.
    """

    name = "blocks"

    KEYS = 1024

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """Return None, as it supports every call."""
        return None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield the partial result of each block of queries."""
        group = q.shape[1] // k.shape[1]
        keys, values = _by_head(k, q.dtype), _by_head(v, q.dtype)
        for block in _blocks(pieces, scores, q.device):
            q0, q1, k0, k1 = block
            queries = _by_key_head(q[q0:q1], group)
            capped = [
                _scores(queries, keys, block, part, scores).capped for part in self._parts(block)
            ]
            weights = capped[0] if len(capped) == 1 else torch.cat(capped, -1)
            lse = weights.logsumexp(-1, keepdim=True)
            out = weights.sub_(lse).exp_() @ values[:, k0:k1]
            yield Partial(slice(q0, q1), _by_token(out, group), _by_token(lse, group).squeeze(-1))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of each block of queries, its scores computed again."""
        q, k, v = attended.q, attended.k, attended.v
        group = q.shape[1] // k.shape[1]
        keys, values = _by_head(k, q.dtype), _by_head(v, q.dtype)
        for block in _blocks(pieces, scores, q.device):
            q0, q1, k0, k1 = block
            queries, gradient, out, lse = (
                _by_key_head(tensor[q0:q1], group)
                for tensor in (q, dout, attended.out, attended.lse.unsqueeze(-1))
            )
            delta = (gradient * out).sum(-1, keepdim=True)
            dq = torch.zeros_like(queries)
            dk, dv = (torch.empty_like(tensor[:, k0:k1]) for tensor in (keys, values))
            for part in self._parts(block):
                visible, at = slice(*part), slice(part[0] - k0, part[1] - k0)
                block_scores = _scores(queries, keys, block, part, scores)
                weights = block_scores.capped.sub_(lse).exp_()
                dv[:, at] = weights.transpose(1, 2) @ gradient
                dscores = (gradient @ values[:, visible].transpose(1, 2)).sub_(delta).mul_(weights)
                if block_scores.tanh is not None:
                    dscores.mul_(block_scores.tanh.square_().neg_().add_(1))
                dq.add_(dscores @ keys[:, visible], alpha=scores.scale)
                dk[:, at] = (dscores.transpose(1, 2) @ queries).mul_(scores.scale)
            yield PartialGradients(
                slice(q0, q1),
                slice(k0, k1),
                _by_token(dq, group),
                dk.transpose(0, 1),
                dv.transpose(0, 1),
            )

    def _parts(self, block: Piece) -> list[tuple[int, int]]:
        """Divide a block's keys."""
        return [
            (start, min(block.k1, start + self.KEYS))
            for start in range(block.k0, block.k1, self.KEYS)
        ]


class _Made(NamedTuple):
    """Scores (key heads, queries of all its heads, keys), capped and masked; and their tanh."""

    capped: Tensor
    tanh: Tensor | None


def _scores(
    queries: Tensor, keys: Tensor, block: Piece, part: tuple[int, int], scores: Scores
) -> _Made:
    cap = scores.softcap
    products = queries @ keys[:, slice(*part)].transpose(1, 2)
    products.mul_(scores.scale if cap is None else scores.scale / cap)
    tanh = None if cap is None else products.tanh_()
    capped = products if cap is None else products * cap
    if scores.causal:
        rows, columns = block.q1 - block.q0, block.k1 - block.k0
        # All queries see all keys up to the first query's, from the last one's window on.
        diagonal = block.k1 - rows
        first = block.k0 if scores.window is None else block.k1 - scores.window
        if part[1] > diagonal + 1 or part[0] < first:
            hidden = hidden_keys(rows, columns, scores.window, queries.device)
            hidden = hidden[:, part[0] - block.k0 : part[1] - block.k0]
            capped.view(len(capped), -1, *hidden.shape).masked_fill_(hidden, float("-inf"))
    return _Made(capped, tanh)


def _blocks(pieces: Pieces, scores: Scores, device: torch.device) -> Iterator[Piece]:
    rows = 64 if scores.window is not None else 128
    if device.type != "cpu":
        rows = 1024  # few large products
    for piece in pieces:
        if scores.causal:
            yield from query_blocks(piece, rows, scores.window)
        else:
            for start in range(piece.q0, piece.q1, rows):
                yield piece._replace(q0=start, q1=min(piece.q1, start + rows))


def _by_head(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn (tokens, heads, d) into (heads, tokens, d) in the accumulation dtype."""
    return tensor.transpose(0, 1).to(accumulation_dtype(dtype))


def _by_key_head(tensor: Tensor, group: int) -> Tensor:
    """Turn (tokens, heads, d) into (key heads, group · tokens, d), grouped by key head."""
    tokens, heads, width = tensor.shape
    by_head = _by_head(tensor, tensor.dtype)
    return by_head.reshape(heads // group, group * tokens, width)


def _by_token(tensor: Tensor, group: int) -> Tensor:
    """Turn (key heads, group · tokens, d) into (tokens, heads, d)."""
    keys, rows, width = tensor.shape
    return tensor.view(keys * group, rows // group, width).transpose(0, 1)
