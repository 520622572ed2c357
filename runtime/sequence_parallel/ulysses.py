"""The Ulysses all-to-all: from a piece of the tokens with all heads to all tokens with some heads.

Query heads are split as evenly as they go, ``[u·H // U, (u+1)·H // U)`` for rank u, so that the
degree need not divide them. A rank gets the key and value heads that its query heads attend to;
where the degree exceeds the number of key heads, several ranks get the same one, and its gradient
is the sum of theirs.

One all-to-all carries q, k and v: a third of the latency of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.plans.views.sharding import Range, ulysses_piece
from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.flat_heads import (
    Heads,
    flat_width,
    flatten_heads,
    unflatten_heads,
)
from seqplan.runtime.sequence_parallel.peers import Peers


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Which heads each of ``degree`` Ulysses ranks computes.

    ``queries`` and ``keys``: a range of heads for each rank; ``ValueError`` from ``of`` if the
    heads cannot be split so.
    """

    queries: tuple[Range, ...]
    keys: tuple[Range, ...]
    group: int

    @classmethod
    def from_heads(cls, heads: int, kv_heads: int, degree: int) -> HeadSplit:
        """Split ``heads`` query heads, each ``heads / kv_heads`` of which share a key."""
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads cannot share {kv_heads} key heads evenly")
        if degree > heads:
            raise ValueError(
                f"Ulysses degree {degree} exceeds the model's {heads} attention heads: "
                "plan with a smaller degree, or with ring attention instead"
            )
        group = heads // kv_heads
        queries = tuple(ulysses_piece(heads, degree, rank) for rank in range(degree))
        keys = tuple((first // group, (stop - 1) // group + 1) for first, stop in queries)
        return cls(queries=queries, keys=keys, group=group)

    def key_of_query(self, rank: int) -> list[int] | None:
        """Return the index of each query head's key head among the rank's.

        None if consecutive heads share keys evenly, which kernels do by themselves.
        """
        (first, stop), (key, last) = self.queries[rank], self.keys[rank]
        index = [head // self.group - key for head in range(first, stop)]
        queries_per_key, rest = divmod(stop - first, last - key)
        if not rest and index == [head // queries_per_key for head in range(stop - first)]:
            return None
        return index


@dataclass(frozen=True, slots=True)
class UlyssesLayout:
    """One Ulysses group's tokens: ``offsets`` of each rank's piece in the ring buffer's rows."""

    rank: int
    ranks: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def from_rank(cls, tokens: int, ranks: tuple[int, ...], rank: int) -> UlyssesLayout:
        """Lay out a ring buffer of ``tokens`` rows; ``rank`` is an index of ``ranks``."""
        pieces = [ulysses_piece(tokens, len(ranks), member) for member in range(len(ranks))]
        return cls(rank=rank, ranks=ranks, offsets=(0, *(stop for _, stop in pieces)))

    @property
    def tokens(self) -> int:
        """Rows of the whole ring buffer."""
        return self.offsets[-1]


def scatter_heads(
    q: Tensor, k: Tensor, v: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers
) -> tuple[Tensor, Tensor, Tensor]:
    """Exchange (local tokens, all heads, d) for (ring buffer's tokens, this rank's heads, d).

    The results are views of one buffer in which every rank's piece arrives in its place; v may be
    of another width than q and k.
    """
    parts = [
        flatten_heads(q[:, slice(*queries)], k[:, slice(*keys)], v[:, slice(*keys)])
        for queries, keys in zip(split.queries, split.keys, strict=True)
    ]
    heads = _split_heads(split, layout.rank, q.shape[2], v.shape[2])
    q, k, v = unflatten_heads(_gather_tokens(parts, layout, peers), *heads)
    return q, k, v


def gather_heads(out: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers) -> Tensor:
    """Exchange (ring buffer's tokens, this rank's heads, d) for (local tokens, all heads, d)."""
    width = out.shape[2]
    widths = [(stop - first) * width for first, stop in split.queries]
    rows = torch.cat(_return_tokens(out.flatten(1), widths, layout, peers), dim=1)
    return unflatten_heads(rows, (split.queries[-1][1], width))[0]


def scatter_output_gradient(
    dout: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers
) -> Tensor:
    """Compute the backward of ``gather_heads``."""
    parts = [dout[:, slice(*queries)].flatten(1) for queries in split.queries]
    first, stop = split.queries[layout.rank]
    rows = _gather_tokens(parts, layout, peers)
    return unflatten_heads(rows, (stop - first, dout.shape[2]))[0]


def gather_input_gradients(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    kv_heads: int,
    layout: UlyssesLayout,
    split: HeadSplit,
    peers: Peers,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the backward of ``scatter_heads``; key heads that several ranks had are summed."""
    heads = [
        _split_heads(split, member, dq.shape[2], dv.shape[2]) for member in range(len(layout.ranks))
    ]
    widths = [flat_width(*shapes) for shapes in heads]
    parts = _return_tokens(flatten_heads(dq, dk, dv), widths, layout, peers)
    tokens = parts[0].shape[0]
    # In the accumulation dtype: up to ``degree`` gradients of one head are summed.
    keys, values = (
        gradient.new_zeros(
            tokens, kv_heads, gradient.shape[2], dtype=accumulation_dtype(gradient.dtype)
        )
        for gradient in (dk, dv)
    )
    queries = []
    for part, shapes, (key, last) in zip(parts, heads, split.keys, strict=True):
        of_queries, of_keys, of_values = unflatten_heads(part, *shapes)
        queries.append(of_queries)
        keys[:, key:last] += of_keys
        values[:, key:last] += of_values
    return torch.cat(queries, dim=1), keys.to(dk.dtype), values.to(dv.dtype)


def _split_heads(
    split: HeadSplit, member: int, width: int, value_width: int
) -> tuple[Heads, Heads, Heads]:
    """Return a rank's heads of queries, keys and values, and their widths."""
    (first, stop), (key, last) = split.queries[member], split.keys[member]
    return (stop - first, width), (last - key, width), (last - key, value_width)


def _piece(layout: UlyssesLayout, member: int) -> Range:
    return layout.offsets[member], layout.offsets[member + 1]


def _gather_tokens(parts: Sequence[Tensor], layout: UlyssesLayout, peers: Peers) -> Tensor:
    """Give rank m the rows ``parts[m]``: return the whole buffer's, in this rank's width."""
    local = parts[layout.rank]
    buffer = local.new_empty(layout.tokens, local.shape[1])
    buffer[slice(*_piece(layout, layout.rank))] = local
    others = [member for member in range(len(parts)) if member != layout.rank]
    peers.transfer(
        [(parts[member].contiguous(), layout.ranks[member]) for member in others],
        [(buffer[slice(*_piece(layout, member))], layout.ranks[member]) for member in others],
    ).wait()
    return buffer


def _return_tokens(
    rows: Tensor, widths: Sequence[int], layout: UlyssesLayout, peers: Peers
) -> list[Tensor]:
    """Give every rank its rows back: from rank m those of ``widths[m]``, in rank order."""
    first, stop = _piece(layout, layout.rank)
    rows = rows.contiguous()
    parts = [
        rows[first:stop] if member == layout.rank else rows.new_empty(stop - first, width)
        for member, width in enumerate(widths)
    ]
    others = [member for member in range(len(widths)) if member != layout.rank]
    peers.transfer(
        [(rows[slice(*_piece(layout, member))], layout.ranks[member]) for member in others],
        [(parts[member], layout.ranks[member]) for member in others],
    ).wait()
    return parts
