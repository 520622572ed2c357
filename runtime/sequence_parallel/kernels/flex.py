"""Attention by torch's FlexAttention: soft caps and windows in one compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.sequence_parallel.kernels.base import (
    Attended,
    Partial,
    PartialGradients,
    Pieces,
    Scores,
)
from seqplan.runtime.sequence_parallel.kernels.requirements import (
    HALF,
    Requirements,
    RequiringKernel,
)
from seqplan.runtime.sequence_parallel.kernels.rows import query_rows, take_rows

BLOCK = 128
"""Queries, and keys, of a block of the kernel's mask: its default."""

KEPT_MASKS = 64
"""Masks that stay on the device: of the micro-batches in flight, for all layers."""


class FlexKernel(RequiringKernel):
    """FlexAttention, all pieces in one call; fp32 and 16 bits, on request.

    Every query of a piece sees one range of keys, which is its mask. Backward computes a call's
    output again, and its gradient against the merged output is that of this output and of its
    log-sum-exp.
    """

    name = "flex"
    requirements = Requirements(
        dtypes=(*HALF, torch.float32), softcap=True, narrowest=16, module="triton"
    )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield one partial result, of all pieces together."""
        if not pieces:
            return
        rows, counted = query_rows(pieces, q.shape[0], q.device)
        yield Partial(rows, *_attend(take_rows(q, rows), k, v, counted, scores))

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of all pieces together."""
        if not pieces:
            return
        rows, counted = query_rows(pieces, dout.shape[0], dout.device)
        q, k, v = (
            tensor.detach().requires_grad_()
            for tensor in (take_rows(attended.q, rows), attended.k, attended.v)
        )
        with torch.enable_grad():
            out, lse = _attend(q, k, v, counted, scores)
        # Scores of this call in the softmax over all: its gradient is that of its part.
        share = torch.exp(lse.detach() - take_rows(attended.lse, rows)).unsqueeze(-1)
        of_out = take_rows(dout, rows) * share
        of_lse = (of_out * (out.detach() - take_rows(attended.out, rows))).sum(-1)
        dq, dk, dv = torch.autograd.grad(
            (out, lse), (q, k, v), (of_out.to(out.dtype), of_lse.to(lse.dtype))
        )
        yield PartialGradients(rows, slice(None), dq, dk, dv)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
) -> tuple[Tensor, Tensor]:
    """Compute output (queries, heads, d) and log-sum-exp (queries, heads) of all rows of q."""
    from torch.nn.attention.flex_attention import AuxRequest

    mask = _mask(pieces, k.shape[0], scores.causal, scores.window, q.device)
    out, aux = compile_attention()(
        *(tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v)),
        score_mod=None if scores.softcap is None else _capping(scores.softcap),
        block_mask=mask,
        scale=scores.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return out[0].transpose(0, 1), aux.lse[0].t()


@cache
def compile_attention() -> Callable[..., Any]:
    """Return FlexAttention compiled once for all lengths."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _capping(softcap: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


class KeyRanges(NamedTuple):
    """Keys ``[first, stop)`` that each query sees, int32 (queries,) each."""

    first: npt.NDArray[np.int32]
    stop: npt.NDArray[np.int32]


def find_key_ranges(pieces: Pieces, causal: bool, window: int | None) -> KeyRanges:
    """Return the keys that each query of pieces sees; their rows follow each other from 0."""
    queries = pieces[-1].q1
    first, stop = np.zeros(queries, np.int32), np.zeros(queries, np.int32)
    for q0, q1, k0, k1 in pieces:
        stop[q0:q1] = k1
        if causal:
            stop[q0:q1] -= np.arange(q1 - q0, dtype=np.int32)[::-1]
        first[q0:q1] = k0
        if causal and window is not None:
            first[q0:q1] = np.maximum(k0, stop[q0:q1] - window)
    return KeyRanges(first, stop)


class BlockLists(NamedTuple):
    """Blocks of keys that each block of queries sees.

    int32 (query blocks, key blocks), and counts.

    ``partial``: those that some query sees a part of; ``whole``: those that all see all of.
    """

    partial_counts: npt.NDArray[np.int32]
    partial: npt.NDArray[np.int32]
    whole_counts: npt.NDArray[np.int32]
    whole: npt.NDArray[np.int32]


def list_blocks(pieces: Pieces, keys: int, ranges: KeyRanges) -> BlockLists:
    """List the blocks of ``keys`` keys that blocks of queries see."""
    rows, columns = -(-pieces[-1].q1 // BLOCK), -(-keys // BLOCK)
    seen = np.zeros((rows, columns), bool)
    whole = np.zeros((rows, columns), bool)
    for piece in pieces:
        for row in range(piece.q0 // BLOCK, -(-piece.q1 // BLOCK)):
            start, stop = max(piece.q0, row * BLOCK), min(piece.q1, (row + 1) * BLOCK)
            # Ranges of a piece's later queries begin and end later.
            low, high = ranges.first[start], ranges.stop[stop - 1]
            seen[row, low // BLOCK : -(-high // BLOCK)] = True
            if stop - start == BLOCK:
                low, high = ranges.first[stop - 1], ranges.stop[start]
                whole[row, -(-low // BLOCK) : max(0, high // BLOCK)] = True
    return BlockLists(*_count_and_list(seen & ~whole), *_count_and_list(whole))


def _count_and_list(
    chosen: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return how many columns of each row are chosen, and their numbers before the others'."""
    order = np.argsort(~chosen, axis=1, kind="stable")
    return chosen.sum(axis=1, dtype=np.int32), order.astype(np.int32)


@lru_cache(maxsize=KEPT_MASKS)
def _mask(pieces: Pieces, keys: int, causal: bool, window: int | None, device: torch.device) -> Any:
    """Return the block mask of pieces whose queries follow each other from 0."""
    from torch.nn.attention.flex_attention import BlockMask

    ranges = find_key_ranges(pieces, causal, window)
    lists = list_blocks(pieces, keys, ranges)
    first, stop = (copy_to_device(values, device) for values in ranges)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first[query] <= key) & (key < stop[query])

    partial_counts, partial, whole_counts, whole = (
        copy_to_device(values, device)[None, None] for values in lists
    )
    return BlockMask.from_kv_blocks(
        partial_counts,
        partial,
        whole_counts,
        whole,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(pieces[-1].q1, keys),
    )
