"""Tokens to the ranks of their experts, and the results back.

Each token goes to the ranks of its experts in copies, one for each expert: an all-to-all of counts,
one of rows, one of results, within the block; backward has the last two. Rows are sorted by expert,
copies of one expert by source rank and token, so that every sum has one order. The routing weights
stay with the token. No token is dropped: buffers have the size of the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqplan.runtime.experts.blocks import ExpertBlocks

Products = Callable[[Tensor, Sequence[int]], Tensor]
"""From rows (rows, hidden), sorted by local expert, and the rows of each, to their results.

Without rows too the results depend on all parameters that are trained, else a rank would leave out
exchanges of backward that others wait for."""


def dispatch_tokens(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    experts: int,
    products: Products,
    blocks: ExpertBlocks | None = None,
) -> Tensor:
    """Compute Σₖ weight · expert(token): (tokens, hidden), in the dtype of ``tokens``.

    ``tokens`` (tokens, hidden); ``index`` of ``experts`` experts and ``weights`` (tokens, k);
    ``blocks``: of the ranks that hold the experts, None if they are all here. All ranks of a block
    call it together, also without tokens. ``RankLost`` if one is gone.
    """
    count, top_k = index.shape
    order = torch.argsort(index.reshape(-1), stable=True)
    inverse = _invert(order)
    chosen = index.reshape(-1)[order]
    borders = torch.arange(experts + 1, device=index.device)
    counts = torch.searchsorted(chosen, borders).diff()
    rows: Tensor = _Copies.apply(tokens, order, inverse, top_k)  # type: ignore[no-untyped-call]
    if blocks is None:
        results = products(rows, read_counts(counts, len(rows)))
    else:
        results = _run_on_block(rows, counts, products, blocks)
    back: Tensor = _Permuted.apply(results, inverse, order)  # type: ignore[no-untyped-call]
    exact = torch.promote_types(tokens.dtype, weights.dtype)
    back = back.view(count, top_k, tokens.shape[1]).to(exact)
    return (back * weights.unsqueeze(-1)).sum(1).to(tokens.dtype)


def _run_on_block(rows: Tensor, counts: Tensor, products: Products, blocks: ExpertBlocks) -> Tensor:
    """Compute the results of ``rows``, sorted by expert, on the ranks of the experts."""
    blocks.check_received(counts)
    degree, local = blocks.degree, len(counts) // blocks.degree
    arriving = blocks.exchange(counts, [local] * degree, [local] * degree)
    # One wait for the device in each layer.
    both = read_counts(torch.cat((counts, arriving)), len(rows))
    sent, received = (
        [sum(both[first : first + local]) for first in range(start, start + len(counts), local)]
        for start in (0, len(counts))
    )
    there: Tensor = _Exchanged.apply(rows, blocks, sent, received)  # type: ignore[no-untyped-call]
    expert = torch.arange(local, device=rows.device).repeat(degree)
    expert = torch.repeat_interleave(expert, arriving, output_size=sum(received))
    order = torch.argsort(expert, stable=True)
    inverse = _invert(order)
    by_expert: Tensor = _Permuted.apply(there, order, inverse)  # type: ignore[no-untyped-call]
    results = products(by_expert, [sum(both[len(counts) + at :: local]) for at in range(local)])
    by_rank: Tensor = _Permuted.apply(results, inverse, order)  # type: ignore[no-untyped-call]
    back: Tensor = _Exchanged.apply(by_rank, blocks, received, sent)  # type: ignore[no-untyped-call]
    return back


def read_counts(counts: Tensor, rows: int) -> list[int]:
    """Read rows of experts on the host, which waits for the device.

    ``rows``: sent from here, the sum of the first counts.
    """
    numbers: list[int] = counts.tolist()
    return numbers


def _invert(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse


class _Copies(torch.autograd.Function):
    """``top_k`` copies of each row, in another order; backward sums them in one order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.top_k = top_k
        return rows[order // top_k]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        (gradient,) = gradients
        exact = torch.promote_types(gradient.dtype, torch.float32)
        copies = gradient[inverse].view(len(inverse) // ctx.top_k, ctx.top_k, gradient.shape[1])
        return copies.to(exact).sum(1).to(gradient.dtype), None, None, None


class _Permuted(torch.autograd.Function):
    """Rows in another order, and gradients back by the inverse: nothing is added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None


class _Exchanged(torch.autograd.Function):
    """Rows that go to the ranks of the block; their gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, blocks: ExpertBlocks, sent: list[int], received: list[int]
    ) -> Tensor:
        ctx.blocks, ctx.sent, ctx.received = blocks, sent, received
        out = blocks.exchange(rows.contiguous(), sent, received)
        # A checkpoint ends its recomputation at the last tensor that it kept: with one kept here,
        # no rank leaves out an exchange, whatever part of the layer it computes again.
        ctx.save_for_backward(out.new_empty(0))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].contiguous()
        return ctx.blocks.exchange(gradient, ctx.received, ctx.sent), None, None, None
