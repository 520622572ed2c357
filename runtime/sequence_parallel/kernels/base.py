"""What attention kernels have in common: pieces, partial results, and the interface.

A kernel computes softmax attention of pieces (``Piece``) of packed tensors, and gives for each
group of rows the output and the log-sum-exp of its scores, so that the results of several calls
over the same rows can be merged exactly. Backward takes the *merged* output and log-sum-exp, which
makes the gradients of every piece exact whatever the order of the pieces (the same identity that
flash attention's backward rests on).

Tensors are (tokens, heads, head_dim) with a contiguous last axis; the heads of q are a multiple of
those of k and v, consecutive ones sharing one. Log-sum-exps are (tokens, heads).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class Piece(NamedTuple):
    """Queries ``[q0, q1)`` × keys ``[k0, k1)``, rows of two buffers; neither range is empty."""

    q0: int
    q1: int
    k0: int
    k1: int


Pieces = tuple[Piece, ...]

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


class Kernel(Protocol):
    """What the ring needs of a device's attention."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[Partial]:
        """Yield the partial results of all pieces, each query row in at most one of them."""
        ...

    def backward(
        self, dout: Tensor, attended: Attended, pieces: Pieces, *, causal: bool, scale: float
    ) -> Iterator[PartialGradients]:
        """Yield the gradients of all pieces; a key row may be in several."""
        ...
