"""Unified sequence-parallel attention of one packed micro-batch (USP Algorithms 1 and 2).

Ulysses within, ring around it; pure Ulysses, pure ring and a single rank are the same code with
degrees of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.kernels import Attended, kernel_for
from seqplan.runtime.sequence_parallel.ring import Ring, ring_backward, ring_forward
from seqplan.runtime.sequence_parallel.ulysses import (
    HeadSplit,
    gather_heads,
    gather_input_gradients,
    scatter_heads,
    scatter_output_gradient,
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute causal attention within each document of the micro-batch, differentiable.

    q: (local tokens, heads, d); k and v: (local tokens, kv heads, d), heads a multiple of kv
    heads; the result is shaped like q. All ranks of the pipeline call it together, also those
    with no local token. ``scale`` is 1/√d where None; ``window``: how many keys back a query sees,
    its own included. It computes in v's dtype and gives its result in it: autocast leaves rotated q
    and k in fp32. ``ValueError`` where the heads cannot be split over the Ulysses degree or the
    rows are not the micro-batch's; ``NotImplementedError`` for dropout, soft-capped scores, and a
    window that hides keys of the micro-batch's longest document.
    """
    longest = max(context.lengths, default=0)
    for name, asked in (
        ("dropout", dropout != 0.0),
        (
            f"a window of {window} tokens over a document of {longest}",
            window is not None and window < longest,
        ),
        ("softcap", softcap is not None),
    ):
        if asked:
            raise NotImplementedError(f"attention with {name} is not supported: turn it off")
    q, k = q.to(v.dtype), k.to(v.dtype)
    tokens = context.positions.shape[0]
    if not q.shape[0] == k.shape[0] == v.shape[0] == tokens:
        raise ValueError(
            f"q, k and v have {q.shape[0]}, {k.shape[0]} and {v.shape[0]} rows; "
            f"this rank holds {tokens} tokens of the micro-batch"
        )
    split = HeadSplit.of(q.shape[1], k.shape[1], len(context.ulysses.ranks))
    context.count_call()
    if scale is None:
        scale = q.shape[2] ** -0.5
    result: Tensor = _Attention.apply(q, k, v, context, split, scale)  # type: ignore[no-untyped-call]
    return result


class _Attention(torch.autograd.Function):
    """The whole of attention as one node, so that backward can overlap as forward does."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: AttentionContext,
        split: HeadSplit,
        scale: float,
    ) -> Tensor:
        ctx.context, ctx.split, ctx.scale, ctx.kv_heads = context, split, scale, k.shape[1]
        layout = context.ulysses
        if len(layout.ranks) > 1:
            q, k, v = scatter_heads(q, k, v, layout, split, context.peers)
        else:
            q, k, v = (_unit_stride(tensor) for tensor in (q, k, v))
        ring = _ring(context, q)
        out, lse = ring_forward(q, *_expanded(k, v, split, context), ring, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        if len(layout.ranks) > 1:
            return gather_heads(out, layout, split, context.peers)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        context: AttentionContext = ctx.context
        split: HeadSplit = ctx.split
        layout = context.ulysses
        (dout,) = gradients
        if len(layout.ranks) > 1:
            dout = scatter_output_gradient(dout, layout, split, context.peers)
        else:
            dout = _unit_stride(dout)
        ring = _ring(context, q)
        keys, values = _expanded(k, v, split, context)
        attended = Attended(q, keys, values, out, lse)
        dq, dk, dv = ring_backward(dout, attended, ring, ctx.scale)
        dk, dv = (_reduced(gradient, k.shape[1], split, context) for gradient in (dk, dv))
        if len(layout.ranks) > 1:
            dq, dk, dv = gather_input_gradients(
                dq, dk, dv, ctx.kv_heads, layout, split, context.peers
            )
        return dq, dk, dv, None, None, None


def _ring(context: AttentionContext, q: Tensor) -> Ring:
    kernel = kernel_for(q) if context.kernel is None else context.kernel
    return Ring(context.ring, context.ring_ranks, context.peers, kernel, context.indices)


def _unit_stride(tensor: Tensor) -> Tensor:
    """Make the innermost stride 1, as kernels read garbage where it is not."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _expanded(
    k: Tensor, v: Tensor, split: HeadSplit, context: AttentionContext
) -> tuple[Tensor, Tensor]:
    """Give every query head a key head where the rank's heads share them unevenly."""
    index = _key_of_query(split, context, k.device)
    return (k, v) if index is None else (k[:, index], v[:, index])


def _reduced(
    gradient: Tensor, kv_heads: int, split: HeadSplit, context: AttentionContext
) -> Tensor:
    """Compute the backward of ``_expanded``."""
    index = _key_of_query(split, context, gradient.device)
    if index is None:
        return gradient
    total = gradient.new_zeros(gradient.shape[0], kv_heads, gradient.shape[2])
    return total.index_add_(1, index, gradient)


def _key_of_query(
    split: HeadSplit, context: AttentionContext, device: torch.device
) -> Tensor | None:
    rank = context.ulysses.rank
    index = split.key_of_query(rank)
    if index is None:
        return None
    return context.indices.tensor(("key of query", *index), np.array(index), device)


Attend = Callable[[Tensor, Tensor, Tensor, AttentionContext], Tensor]
"""The shape of an attention call: what a model's own attention function is wrapped into."""
