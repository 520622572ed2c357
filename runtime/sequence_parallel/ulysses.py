"""The Ulysses exchange: from a piece of the tokens with all heads to all tokens with some heads.

Query heads are split as evenly as they go, ``[u·H // U, (u+1)·H // U)`` for rank u, so that the
degree need not divide them. A rank gets the key and value heads that its query heads attend to;
where the degree exceeds the number of key heads, several ranks get the same one, and its gradient
is the sum of theirs.

One exchange carries q, k and v: a third of the latency of three.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from seqplan.plans.views.sharding import Range, ulysses_piece
from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.sequence_parallel.peers import Peers


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Which heads each of ``degree`` Ulysses ranks computes.

    ``queries`` and ``keys``: a range of heads for each rank; ``ValueError`` from ``of`` where the
    heads cannot be split so.
    """

    queries: tuple[Range, ...]
    keys: tuple[Range, ...]
    group: int

    @classmethod
    def of(cls, heads: int, kv_heads: int, degree: int) -> HeadSplit:
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
        """Return for each query head of a rank the index of its key head among the rank's own.

        None where consecutive heads share keys evenly, which kernels do by themselves.
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
    def of(cls, tokens: int, ranks: tuple[int, ...], rank: int) -> UlyssesLayout:
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

    The results are views of one buffer in which every rank's piece arrives in its place.
    """
    (first, stop), (key, last) = split.queries[layout.rank], split.keys[layout.rank]
    heads, keys = stop - first, last - key
    buffer = q.new_empty(layout.tokens, heads + 2 * keys, q.shape[2])
    sends = []
    for member, rank in enumerate(layout.ranks):
        part = _fused(q, k, v, split, member)
        if member == layout.rank:
            buffer[slice(*_piece(layout, member))] = part
        else:
            sends.append((part, rank))
    _receive_pieces(buffer, sends, layout, peers)
    return buffer[:, :heads], buffer[:, heads : heads + keys], buffer[:, heads + keys :]


def gather_heads(out: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers) -> Tensor:
    """Exchange (ring buffer's tokens, this rank's heads, d) for (local tokens, all heads, d)."""
    parts = _return_pieces(out, [stop - first for first, stop in split.queries], layout, peers)
    return torch.cat(parts, dim=1)


def scatter_output_gradient(
    dout: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers
) -> Tensor:
    """Compute the backward of ``gather_heads``."""
    first, stop = split.queries[layout.rank]
    buffer = dout.new_empty(layout.tokens, stop - first, dout.shape[2])
    sends = []
    for member, rank in enumerate(layout.ranks):
        part = dout[:, slice(*split.queries[member])]
        if member == layout.rank:
            buffer[slice(*_piece(layout, member))] = part
        else:
            sends.append((part.contiguous(), rank))
    _receive_pieces(buffer, sends, layout, peers)
    return buffer


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
    fused = torch.cat((dq, dk, dv), dim=1)
    widths = [
        stop - first + 2 * (last - key)
        for (first, stop), (key, last) in zip(split.queries, split.keys, strict=True)
    ]
    parts = _return_pieces(fused, widths, layout, peers)
    tokens = parts[0].shape[0]
    # In the accumulation dtype: up to ``degree`` gradients of one head are summed.
    wide = dq.new_zeros(2, tokens, kv_heads, dq.shape[2], dtype=accumulation_dtype(dq.dtype))
    queries = []
    for part, (first, stop), (key, last) in zip(parts, split.queries, split.keys, strict=True):
        heads, keys = stop - first, last - key
        queries.append(part[:, :heads])
        wide[0, :, key:last] += part[:, heads : heads + keys]
        wide[1, :, key:last] += part[:, heads + keys :]
    dk, dv = wide.to(dk.dtype)
    return torch.cat(queries, dim=1), dk, dv


def _fused(q: Tensor, k: Tensor, v: Tensor, split: HeadSplit, member: int) -> Tensor:
    heads, keys = slice(*split.queries[member]), slice(*split.keys[member])
    return torch.cat((q[:, heads], k[:, keys], v[:, keys]), dim=1)


def _piece(layout: UlyssesLayout, member: int) -> Range:
    return layout.offsets[member], layout.offsets[member + 1]


def _receive_pieces(
    buffer: Tensor, sends: list[tuple[Tensor, int]], layout: UlyssesLayout, peers: Peers
) -> None:
    """Fill the rows of all other ranks' pieces."""
    receives = [
        (buffer[first:stop], rank)
        for member, ((first, stop), rank) in enumerate(
            zip(pairwise(layout.offsets), layout.ranks, strict=True)
        )
        if member != layout.rank
    ]
    peers.transfer(sends, receives).wait()


def _return_pieces(
    tensor: Tensor, widths: list[int], layout: UlyssesLayout, peers: Peers
) -> list[Tensor]:
    """Give every rank its rows back: from rank m those of ``widths[m]`` heads, in rank order."""
    first, stop = _piece(layout, layout.rank)
    tensor = tensor.contiguous()
    parts = [
        tensor[first:stop]
        if member == layout.rank
        else tensor.new_empty(stop - first, width, tensor.shape[2])
        for member, width in enumerate(widths)
    ]
    others = [member for member in range(len(widths)) if member != layout.rank]
    peers.transfer(
        [(tensor[slice(*_piece(layout, member))], layout.ranks[member]) for member in others],
        [(parts[member], layout.ranks[member]) for member in others],
    ).wait()
    return parts
