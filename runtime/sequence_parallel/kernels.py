"""Attention kernels behind one interface: pieces in, partial results out.

A kernel computes softmax attention of pieces (``ring_layout.Piece``) of packed tensors, and gives
for each group of rows the output and the log-sum-exp of its scores, so that the results of several
calls over the same rows can be merged exactly. Backward takes the *merged* output and log-sum-exp,
which makes the gradients of every piece exact whatever the order of the pieces (the same identity
that flash attention's backward rests on).

Tensors are (tokens, heads, head_dim) with a contiguous last axis; the heads of q are a multiple of
those of k and v, consecutive ones sharing one. Log-sum-exps are (tokens, heads).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.ring_layout import Piece, Pieces

Rows = slice | Tensor
"""Rows of a packed tensor: a range, or an int64 index."""


class Partial(NamedTuple):
    """Output (rows, heads, head_dim) and log-sum-exp (rows, heads) of the query rows ``rows``."""

    rows: Rows
    out: Tensor
    lse: Tensor


class PartialGradients(NamedTuple):
    """Gradients to be added to the rows ``q_rows`` of q's and ``k_rows`` of k's and v's."""

    q_rows: Rows
    k_rows: Rows
    dq: Tensor
    dk: Tensor
    dv: Tensor


class Kernel(Protocol):
    """What the ring needs of a device's attention."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """The partial results of all pieces, each query row in at most one of them."""
        ...

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> Iterator[PartialGradients]:
        """The gradients of all pieces; a key row may be in several."""
        ...


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, fp32 for all else: merging in bf16 costs 3–6 times the error."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _batched(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``[start, stop)`` as (1, heads, tokens, head_dim), a view."""
    return tensor[start:stop].transpose(0, 1).unsqueeze(0)


def _packed(tensor: Tensor) -> Tensor:
    """(1, heads, tokens, …) as (tokens, heads, …), a view."""
    return tensor.squeeze(0).transpose(0, 1)


class CpuKernel:
    """The fused CPU kernel that ships with torch, one call for each piece.

    Its bf16 backward is slow on small pieces (0.65 ms against 0.1 ms in fp32 for 32 × 32 tokens
    and 8 heads), so that these are computed in fp32, which is also more exact.
    """

    SMALL = 512

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """See ``Kernel``."""
        for q0, q1, k0, k1 in pieces:
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                _batched(q, q0, q1),
                _batched(k, k0, k1),
                _batched(v, k0, k1),
                0.0,
                causal,
                attn_mask=None,
                scale=scale,
            )
            yield Partial(slice(q0, q1), _packed(out), _packed(lse))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> Iterator[PartialGradients]:
        """See ``Kernel``."""
        for q0, q1, k0, k1 in pieces:
            operands = (
                _batched(dout, q0, q1),
                _batched(q, q0, q1),
                _batched(k, k0, k1),
                _batched(v, k0, k1),
                _batched(out, q0, q1),
            )
            if q.dtype != lse.dtype and min(q1 - q0, k1 - k0) < self.SMALL:
                operands = tuple(operand.to(lse.dtype) for operand in operands)  # type: ignore[assignment]
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *operands,
                _batched(lse, q0, q1),
                0.0,
                causal,
                attn_mask=None,
                scale=scale,
            )
            yield PartialGradients(
                slice(q0, q1), slice(k0, k1), _packed(dq), _packed(dk), _packed(dv)
            )


class DenseKernel:
    """Plain matrix products, for dtypes without a fused kernel (fp32 and fp64 on CUDA).

    Scores of one piece are held whole: (heads, queries, keys).
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """See ``Kernel``."""
        for piece in pieces:
            queries, keys, values = _dense_operands(q, k, v, piece)
            scores = _scores(queries, keys, causal, scale)
            lse = scores.logsumexp(-1)
            out = torch.exp(scores - lse.unsqueeze(-1)) @ values
            yield Partial(slice(piece.q0, piece.q1), out.transpose(0, 1), lse.transpose(0, 1))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> Iterator[PartialGradients]:
        """See ``Kernel``."""
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
    """q, k and v of a piece as (query heads, tokens, head_dim) in the accumulation dtype."""
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


class _VarlenIndex(NamedTuple):
    """Pieces as one variable-length call; rows are None where they are the whole tensor."""

    q_rows: Tensor | None
    k_rows: Tensor | None
    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int


@lru_cache(maxsize=512)
def _varlen_index(
    pieces: Pieces, q_tokens: int, k_tokens: int, device: torch.device
) -> _VarlenIndex:
    def axis(ranges: list[tuple[int, int]], tokens: int) -> tuple[Tensor | None, Tensor, int]:
        lengths = torch.tensor([stop - start for start, stop in ranges], dtype=torch.int64)
        cu = torch.zeros(len(ranges) + 1, dtype=torch.int32)
        cu[1:] = lengths.cumsum(0)
        tiled = ranges[0][0] == 0 and ranges[-1][1] == tokens
        tiled = tiled and all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
        rows = None
        if not tiled:
            rows = torch.cat([torch.arange(start, stop) for start, stop in ranges]).to(device)
        return rows, cu.to(device), int(lengths.max())

    q_rows, cu_q, max_q = axis([(piece.q0, piece.q1) for piece in pieces], q_tokens)
    k_rows, cu_k, max_k = axis([(piece.k0, piece.k1) for piece in pieces], k_tokens)
    return _VarlenIndex(q_rows, k_rows, cu_q, cu_k, max_q, max_k)


def _taken(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


class CudaFlashKernel:
    """The flash attention that ships with torch, all pieces in one variable-length call.

    bf16 and fp16 only. Other implementations registered with torch for the same operators are
    used without a change here.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """See ``Kernel``."""
        if not pieces:
            return
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            _taken(q, index.q_rows),
            _taken(k, index.k_rows),
            _taken(v, index.k_rows),
            index.cu_q,
            index.cu_k,
            index.max_q,
            index.max_k,
            0.0,
            causal,
            False,
            scale=scale,
        )
        yield Partial(_rows(index.q_rows), out, lse.transpose(0, 1))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> Iterator[PartialGradients]:
        """See ``Kernel``."""
        if not pieces:
            return
        index = _varlen_index(pieces, q.shape[0], k.shape[0], q.device)
        unused = torch.zeros(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            _taken(dout, index.q_rows).contiguous(),
            _taken(q, index.q_rows),
            _taken(k, index.k_rows),
            _taken(v, index.k_rows),
            _taken(out, index.q_rows).contiguous(),
            _taken(lse, index.q_rows).transpose(0, 1).contiguous(),
            index.cu_q,
            index.cu_k,
            index.max_q,
            index.max_k,
            0.0,
            causal,
            unused,
            unused[:0],
            scale=scale,
        )
        yield PartialGradients(_rows(index.q_rows), _rows(index.k_rows), dq, dk, dv)


def _rows(rows: Tensor | None) -> Rows:
    return slice(None) if rows is None else rows


def kernel_for(tensor: Tensor) -> Kernel:
    """The kernel for the device and dtype of ``tensor``."""
    if tensor.device.type == "cpu":
        return CpuKernel()
    if tensor.device.type == "cuda" and tensor.dtype in (torch.bfloat16, torch.float16):
        return CudaFlashKernel()
    return DenseKernel()
