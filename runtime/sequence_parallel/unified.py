"""Unified sequence-parallel attention of one packed micro-batch (USP Algorithms 1 and 2).

Ulysses within, ring around it; pure Ulysses, pure ring and a single rank are the same code with
degrees of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from seqplan.runtime.recomputation import is_selective, keep_result
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.kernels import Attended, Scores, choose_kernel
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.ring import (
    Ring,
    ring_backward,
    ring_forward,
    sink_gradients,
)
from seqplan.runtime.sequence_parallel.ring_transfers import RingPlace
from seqplan.runtime.sequence_parallel.ulysses import (
    HeadSplit,
    gather_heads,
    gather_input_gradients,
    scatter_heads,
    scatter_outputs,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _exclude_from_graphs(function: _Function) -> _Function:
    """Let compiled layers leave their graph for ``function``: ranks wait for each other in it.

    As ``torch.compiler.disable``, which imports torch's compiler at once: this does when called.
    """
    disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]
    return cast(_Function, disable(function))


@_exclude_from_graphs
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: AttentionContext,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute causal attention within each document of the micro-batch, differentiable.

    q: (local tokens, heads, d); k: (local tokens, kv heads, d), heads a multiple of kv heads; v:
    (local tokens, kv heads, values' d); the result: (local tokens, heads, values' d). All ranks of
    the pipeline call it together, also those with no local token.

    ``scale`` is 1/√d if None. ``window``: how many tokens of its document a query sees, itself
    included; or ``chunk``: of how many tokens the chunks are that its document is divided into, of
    which a query sees one. ``softcap`` c makes c·tanh(score / c) of scores. ``sinks``: (heads,)
    scores that count in the softmax's denominator; their gradient is of this rank's tokens and
    heads, and sums over the ranks to the whole, as those of other parameters do.

    It computes in v's dtype and gives its result in it: autocast leaves rotated q and k in fp32.
    ``ValueError`` if the heads cannot be split over the Ulysses degree, the rows are not the
    micro-batch's, or an option makes no sense; ``NotImplementedError`` for dropout.
    """
    if dropout != 0.0:
        raise NotImplementedError("attention with dropout is not supported: turn it off")
    mask = Mask.from_sizes(window, chunk)
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap is {softcap}: scores are capped at a positive number")
    _check_shapes(q, k, v, context)
    if sinks is not None and sinks.shape != q.shape[1:2]:
        raise ValueError(
            f"sinks are of shape {tuple(sinks.shape)}: there is one for each of the "
            f"{q.shape[1]} query heads"
        )
    q, k = q.to(v.dtype), k.to(v.dtype)
    split = HeadSplit.from_heads(q.shape[1], k.shape[1], len(context.ulysses.ranks))
    context.count_call()
    scores = Scores(q.shape[2] ** -0.5 if scale is None else scale, softcap)
    with record_function("seqplan::attention"):
        result: Tensor = _Attention.apply(q, k, v, sinks, context, split, scores, mask)  # type: ignore[no-untyped-call]
    return result


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> None:
    tokens = context.positions.shape[0]
    if not q.shape[0] == k.shape[0] == v.shape[0] == tokens:
        raise ValueError(
            f"q, k and v have {q.shape[0]}, {k.shape[0]} and {v.shape[0]} rows; "
            f"this rank holds {tokens} tokens of the micro-batch"
        )
    if q.shape[2] != k.shape[2] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"q, k and v have heads (number, width) of {tuple(q.shape[1:])}, {tuple(k.shape[1:])} "
            f"and {tuple(v.shape[1:])}: q and k need the same width, k and v the same number"
        )


class _Attention(torch.autograd.Function):
    """The whole of attention as one node, so that backward can overlap as forward does."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        context: AttentionContext,
        split: HeadSplit,
        scores: Scores,
        mask: Mask,
    ) -> Tensor:
        ctx.context, ctx.split, ctx.scores, ctx.mask = context, split, scores, mask
        layout = context.ulysses
        if len(layout.ranks) > 1:
            q, k, v = scatter_heads(q, k, v, layout, split, context.peers)
        else:
            q, k, v = (_unit_stride(tensor) for tensor in (q, k, v))
        ring = _ring(context, q, v, scores, mask)
        keys, values = _expand(k, v, split, context)
        own_sinks = None if sinks is None else sinks[slice(*split.queries[layout.rank])]
        out, lse = keep_result("attention", lambda: ring_forward(q, keys, values, ring, own_sinks))
        result = out
        if len(layout.ranks) > 1:
            result = gather_heads(out, layout, split, context.peers)
        # The product after attention keeps its result, so that backward exchanges it once more
        # rather than keep it twice. Selective modes keep what the exchange starts from.
        ctx.exchanged = result is not out and not is_selective()
        ctx.save_for_backward(q, k, v, sinks, result if ctx.exchanged else out, lse)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with record_function("seqplan::attention_backward"):
            return _Attention.compute_gradients(ctx, *gradients)

    @staticmethod
    def compute_gradients(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of q, k, v and sinks; None for the rest."""
        q, k, v, sinks, out, lse = ctx.saved_tensors
        context: AttentionContext = ctx.context
        split: HeadSplit = ctx.split
        layout = context.ulysses
        if len(layout.ranks) > 1:
            outputs = (dout, out) if ctx.exchanged else (dout,)
            dout, *exchanged = scatter_outputs(
                *outputs, layout=layout, split=split, peers=context.peers
            )
            (out,) = exchanged or (out,)
        else:
            dout = _unit_stride(dout)
        ring = _ring(context, q, v, ctx.scores, ctx.mask)
        keys, values = _expand(k, v, split, context)
        dq, dk, dv = ring_backward(dout, Attended(q, keys, values, out, lse), ring)
        dk, dv = (_reduce(gradient, k.shape[1], split, context) for gradient in (dk, dv))
        if len(layout.ranks) > 1:
            dq, dk, dv = gather_input_gradients(dq, dk, dv, layout, split, context.peers)
        dsinks = None
        if sinks is not None:
            dsinks = torch.zeros_like(sinks)
            heads = slice(*split.queries[layout.rank])
            dsinks[heads] = sink_gradients(dout, out, lse, sinks[heads]).to(sinks.dtype)
        return dq, dk, dv, dsinks, None, None, None, None


def _ring(context: AttentionContext, q: Tensor, v: Tensor, scores: Scores, mask: Mask) -> Ring:
    kernel = choose_kernel(q, v, scores._replace(window=mask.reach), context.kernel)
    layout = context.layout(mask)
    place = RingPlace(layout, mask, context.ring_ranks, context.peers, context.indices)
    return Ring(place, kernel, scores)


def _unit_stride(tensor: Tensor) -> Tensor:
    """Make the innermost stride 1, as kernels read garbage otherwise."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _expand(
    k: Tensor, v: Tensor, split: HeadSplit, context: AttentionContext
) -> tuple[Tensor, Tensor]:
    """Give every query head a key head if the rank's heads share them unevenly."""
    index = _key_of_query(split, context, k.device)
    return (k, v) if index is None else (k[:, index], v[:, index])


def _reduce(gradient: Tensor, kv_heads: int, split: HeadSplit, context: AttentionContext) -> Tensor:
    """Compute the backward of ``_expand``."""
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
"""Signature of an attention call, into which a model's attention function is wrapped."""
