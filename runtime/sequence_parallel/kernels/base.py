"""What attention kernels have in common: pieces, partial results, and the interface.

A kernel computes softmax attention of pieces (``Piece``) of packed tensors, and gives for
each group of rows the output and the log-sum-exp of its scores, so that the results of several
calls over the same rows can be merged exactly. Backward takes the *merged* output and log-sum-exp,
which makes the gradients of every piece exact whatever the order of the pieces (the same identity
that flash attention's backward rests on).

Tensors are (tokens, heads, head_dim) with a contiguous last axis; the heads of q are a multiple of
those of k and v, consecutive ones sharing one, and values may be of another width than keys.
Log-sum-exps are (tokens, heads).

A causal piece is aligned at the bottom right: its last query sees its last key, the one before all
keys but that. It has as many keys as queries, or more if a window or a chunk cuts its
document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad


class Piece(NamedTuple):
    """Queries ``[q0, q1)`` × keys ``[k0, k1)``, rows of two buffers; neither range is empty."""

    q0: int
    q1: int
    k0: int
    k1: int


Pieces = tuple[Piece, ...]

Rows = slice | Tensor
"""Rows of a packed tensor: a range, or an int64 index."""


class Scores(NamedTuple):
    """How scores come of queries and keys, and which of a piece count.

    ``scale``: what their products are multiplied with; ``softcap``: c of c·tanh(score / c), None
    without; ``causal``: whether pieces are; ``window``: how many keys a causal query sees, up to
    including the query's, None for all before it.
    """

    scale: float
    softcap: float | None = None
    causal: bool = False
    window: int | None = None


class Partial(NamedTuple):
    """Output (rows, heads, values' width) and log-sum-exp (rows, heads) of query rows ``rows``."""

    rows: Rows
    out: Tensor
    lse: Tensor


class PartialGradients(NamedTuple):
    """Gradients to add to rows ``q_rows`` of q and ``k_rows`` of k and v."""

    q_rows: Rows
    k_rows: Rows
    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True, slots=True)
class Attended:
    """What forward attended to, and its merged results: all that backward needs of it.

    q, k, v, and of q's rows the output and the log-sum-exp over *all* their keys, which may be more
    than the rows of ``k``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


@runtime_checkable
class Kernel(Protocol):
    """What the ring needs of a device's attention. Instances have no state."""

    name: str

    def find_unsupported(self, q: Tensor, v: Tensor, scores: Scores) -> str | None:
        """Return the reason why it cannot attend to these queries and values, or None.

        ``scores``: of the layer, with the window, or the chunk, of its mask as ``window``.
        """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, scores: Scores
    ) -> Iterator[Partial]:
        """Yield the pieces' partial results, each query row in at most one."""

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, scores: Scores
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of all pieces; a row may be in several."""


def query_blocks(piece: Piece, rows: int, window: int | None) -> Iterator[Piece]:
    """Yield causal pieces of at most ``rows`` queries each that make up a causal one.

    Their keys are those that a query of the block sees.
    """
    q0, q1, k0, k1 = piece
    for start in range(q0, q1, rows):
        stop = min(q1, start + rows)
        diagonal = k1 - (q1 - start)  # the key of the first query's token
        first = k0 if window is None else max(k0, diagonal - window + 1)
        yield Piece(start, stop, first, k1 - (q1 - stop))


def hidden_keys(
    rows: int, columns: int, window: int | None, device: torch.device | None = None
) -> Tensor:
    """Return which keys of a causal piece are hidden: bool (rows, columns), bottom-right."""
    diagonal = torch.arange(columns - rows, columns, device=device)[:, None]
    back = diagonal - torch.arange(columns, device=device)
    hidden = back < 0
    return hidden if window is None else hidden | (back >= window)


def same_width(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Pad heads with zeros to the widest ones' width, which changes no scores."""
    width = max(tensor.shape[2] for tensor in tensors)
    return tuple(
        tensor if tensor.shape[2] == width else pad(tensor, (0, width - tensor.shape[2]))
        for tensor in tensors
    )


def view_batched(tensor: Tensor, start: int, stop: int) -> Tensor:
    """View rows ``[start, stop)`` as (1, heads, tokens, head_dim)."""
    return tensor[start:stop].transpose(0, 1).unsqueeze(0)
