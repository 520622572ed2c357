"""The Ulysses all-to-all: from a piece of the tokens with all heads to all tokens with some heads.

Query heads are split as evenly as they go, ``[u·H // U, (u+1)·H // U)`` for rank u, so that the
degree need not divide them. A rank gets the key and value heads that its query heads attend to;
where the degree exceeds the number of key heads, several ranks get the same one, and its gradient
is the sum of theirs.

One all-to-all carries q, k and v: a third of the latency of three. What goes to one rank is in one
run of a buffer, packed by a single kernel if all ranks have equally many heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
from seqplan.runtime.sequence_parallel.peers import Parts, Peers


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
    packed = _pack((q, split.queries), (k, split.keys), (v, split.keys))
    heads = [
        _split_heads(split, member, q.shape[2], v.shape[2]) for member in range(len(layout.ranks))
    ]
    rows = _gather_tokens(packed, [flat_width(*shapes) for shapes in heads], layout, peers)
    q, k, v = unflatten_heads(rows, *heads[layout.rank])
    return q, k, v


def gather_heads(out: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers) -> Tensor:
    """Exchange (ring buffer's tokens, this rank's heads, d) for (local tokens, all heads, d)."""
    width = out.shape[2]
    widths = [(stop - first) * width for first, stop in split.queries]
    rows = torch.cat(_return_tokens(out.flatten(1), widths, layout, peers), dim=1)
    return unflatten_heads(rows, (split.queries[-1][1], width))[0]


def scatter_outputs(
    *outputs: Tensor, layout: UlyssesLayout, split: HeadSplit, peers: Peers
) -> tuple[Tensor, ...]:
    """Compute the backward of ``gather_heads`` for gradients or outputs, in one exchange.

    Each (local tokens, all heads, d) → (ring buffer's tokens, this rank's heads, d).
    """
    numbers = [stop - first for first, stop in split.queries]
    widths = [number * sum(output.shape[2] for output in outputs) for number in numbers]
    packed = _pack(*((output, split.queries) for output in outputs))
    rows = _gather_tokens(packed, widths, layout, peers)
    return unflatten_heads(rows, *((numbers[layout.rank], o.shape[2]) for o in outputs))


def gather_input_gradients(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
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
    gradients = [unflatten_heads(part, *shapes) for part, shapes in zip(parts, heads, strict=True)]
    queries, keys, values = zip(*gradients, strict=True)
    return (
        torch.cat(queries, dim=1),
        _join_shared(keys, split.keys),
        _join_shared(values, split.keys),
    )


def _join_shared(parts: Sequence[Tensor], heads: Sequence[Range]) -> Tensor:
    """Join the parts (tokens, heads, d) of all ranks, in rank order.

    ``heads``: range of each. Heads that several ranks had are summed in the accumulation dtype.
    """
    first_parts, shared, covered = [], [], 0
    for part, (first, stop) in zip(parts, heads, strict=True):
        again = min(covered, stop) - first
        if again > 0:
            shared.append((slice(first, first + again), part[:, :again]))
        if stop > covered:
            first_parts.append(part[:, max(again, 0) :])
            covered = stop
    joined = torch.cat(first_parts, dim=1)
    if not shared:
        return joined
    total = joined.to(accumulation_dtype(joined.dtype))
    for at, part in shared:
        total[:, at].add_(part)
    return total.to(joined.dtype)


def _pack(*tensors: tuple[Tensor, Sequence[Range]]) -> Tensor:
    """Pack each rank's ranges of heads (tokens, heads, d) into one run of elements (elements,).

    In a run the heads of all tensors are next to each other for each token.
    """
    if all(len({stop - first for first, stop in ranges}) == 1 for _, ranges in tensors):
        return torch.cat([_by_rank(tensor, ranges) for tensor, ranges in tensors], 2).flatten()
    return torch.cat(
        [
            flatten_heads(
                *(tensor[:, slice(*ranges[member])] for tensor, ranges in tensors)
            ).flatten()
            for member in range(len(tensors[0][1]))
        ]
    )


def _by_rank(tensor: Tensor, ranges: Sequence[Range]) -> Tensor:
    """Arrange heads as (ranks, tokens, features), a view unless ranks share them."""
    tokens, number, width = tensor.shape
    per_rank = ranges[0][1] - ranges[0][0]
    if len(ranges) * per_rank == number:
        return tensor.reshape(tokens, len(ranges), per_rank * width).transpose(0, 1)
    return torch.stack([tensor[:, slice(*heads)].flatten(1) for heads in ranges])


def _split_heads(
    split: HeadSplit, member: int, width: int, value_width: int
) -> tuple[Heads, Heads, Heads]:
    """Return a rank's heads of queries, keys and values, and their widths."""
    (first, stop), (key, last) = split.queries[member], split.keys[member]
    return (stop - first, width), (last - key, width), (last - key, value_width)


def _pieces(layout: UlyssesLayout) -> list[int]:
    """Count the tokens of each rank's piece."""
    return [stop - start for start, stop in pairwise(layout.offsets)]


def _gather_tokens(
    packed: Tensor, widths: Sequence[int], layout: UlyssesLayout, peers: Peers
) -> Tensor:
    """Give rank m its run of ``packed``: return the whole buffer's rows, in this rank's width.

    ``widths``: features of a token for each rank.
    """
    pieces, width = _pieces(layout), widths[layout.rank]
    local = pieces[layout.rank]
    rows = packed.new_empty(layout.tokens, width)
    peers.exchange(
        Parts(packed, [local * other for other in widths]),
        Parts(rows.view(-1), [piece * width for piece in pieces]),
        layout.ranks,
        layout.rank,
    )
    return rows


def _return_tokens(
    rows: Tensor, widths: Sequence[int], layout: UlyssesLayout, peers: Peers
) -> list[Tensor]:
    """Give every rank its rows back: from rank m those of ``widths[m]``, in rank order."""
    pieces = _pieces(layout)
    local = pieces[layout.rank]
    received = Parts(rows.new_empty(local * sum(widths)), [local * width for width in widths])
    sent = Parts(rows.contiguous().view(-1), [piece * rows.shape[1] for piece in pieces])
    peers.exchange(sent, received, layout.ranks, layout.rank)
    return [part.view(local, width) for part, width in zip(received.split(), widths, strict=True)]
