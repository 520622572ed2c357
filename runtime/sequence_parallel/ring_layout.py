"""What each rank of a ring computes, step by step: pure index arithmetic.

Every rank holds two chunks of every document (see ``plans.sharding``), so that a step of the ring
is, for each document, one rectangle of queries and keys without a mask:

- its keys and values (step 0): causal over the document's rows in the buffer, low chunk before
  high chunk, as every row of the high chunk is later than those of the low one;
- those of an earlier ring rank: all queries × the low chunk, the high chunk being later than all;
- those of a later ring rank: the queries of the high chunk × both chunks.

A causal piece has as many queries as keys and step 0 gives every query its key: the two
conventions of aligning a causal mask agree, and the running log-sum-exp is always finite.

A document too short to be worth R − 1 small pieces is *gathered* instead: its keys and values from
all ring ranks in one transfer, then at most two pieces for any ring. One that a
window or a chunk cuts goes neither way: see ``cut_layout``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from seqplan.plans.views.sharding import Range, ring_chunks, ring_tokens
from seqplan.runtime.sequence_parallel.cut_layout import Cut, cut_layout
from seqplan.runtime.sequence_parallel.fetch_layout import Fetch
from seqplan.runtime.sequence_parallel.kernels import Piece, Pieces
from seqplan.runtime.sequence_parallel.kernels.rows import concatenate_ranges
from seqplan.runtime.sequence_parallel.masks import WHOLE, Mask

GATHER_BELOW = 128
"""Documents of fewer tokens *per ring rank* are gathered rather than passed round the ring.

Below it, gathering takes up to a quarter less CPU time; above, both take the same, and gathered
keys and values fill more memory (``python -m benchmarks.run attention``).
"""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The gathered documents: ``pieces`` of this rank's queries and the keys that it fetches."""

    fetch: Fetch
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Passed:
    """The passing of the other documents' keys and values round the ring.

    ``rows``: this rank's rows that travel, None if that is its whole buffer; ``counts``: rows
    of every ring rank; ``pieces[i]``: those of step ``i + 1``, whose keys and values come from ring
    rank ``(rank − i − 1) mod ring`` and are counted within its travelling rows.
    """

    rows: npt.NDArray[np.int64] | None
    counts: tuple[int, ...]
    pieces: tuple[Pieces, ...]


@dataclass(frozen=True, slots=True)
class RingLayout:
    """The attention of one micro-batch on ring rank ``rank``.

    ``tokens``: rows of its buffer; ``local``: the causal pieces of step 0. ``gathered``, ``passed``
    and ``cut`` are None if no document goes that way; every rank of the ring agrees.
    """

    ring: int
    rank: int
    tokens: int
    local: Pieces
    gathered: Gathered | None
    passed: Passed | None
    cut: Cut | None


def ring_layout(
    lengths: Sequence[int],
    ring: int,
    rank: int,
    mask: Mask = WHOLE,
    *,
    gather_below: int = GATHER_BELOW,
) -> RingLayout:
    """Lay out documents of ``lengths`` tokens in packed order for a layer with ``mask``.

    ``gather_below``: 0 passes every whole document round the ring; a large number gathers them all.
    """
    offsets = _offsets(lengths, ring, rank)
    cut = [mask.cuts(length) for length in lengths]
    local = tuple(
        Piece(start, stop, start, stop)
        for (start, stop), apart in zip(pairwise(offsets), cut, strict=True)
        if stop > start and not apart
    )
    gathered = [
        ring > 1 and not apart and length < gather_below * ring
        for length, apart in zip(lengths, cut, strict=True)
    ]
    passed = [
        ring > 1 and not apart and not short for apart, short in zip(cut, gathered, strict=True)
    ]
    every = [_offsets(lengths, ring, member) for member in range(ring)] if any(cut) else []
    return RingLayout(
        ring=ring,
        rank=rank,
        tokens=offsets[-1],
        local=local,
        gathered=_gather(lengths, ring, rank, offsets, gathered) if any(gathered) else None,
        passed=_pass_on(lengths, ring, rank, offsets, passed) if any(passed) else None,
        cut=cut_layout(lengths, ring, rank, mask, every) if any(cut) else None,
    )


def _offsets(lengths: Sequence[int], ring: int, rank: int) -> list[int]:
    return list(accumulate((ring_tokens(length, ring, rank) for length in lengths), initial=0))


def _rows(offsets: Sequence[int], chosen: Sequence[bool]) -> npt.NDArray[np.int64]:
    """Return the rows of the chosen documents in one rank's buffer."""
    return concatenate_ranges(
        [(offsets[at], offsets[at + 1]) for at, wanted in enumerate(chosen) if wanted]
    )


def _pass_on(
    lengths: Sequence[int], ring: int, rank: int, offsets: Sequence[int], passed: Sequence[bool]
) -> Passed:
    documents = [at for at, wanted in enumerate(passed) if wanted]
    long = [lengths[at] for at in documents]
    steps: list[Pieces] = []
    for step in range(1, ring):
        source = (rank - step) % ring
        keys = _offsets(long, ring, source)
        pieces = []
        for index, at in enumerate(documents):
            (low, high), (k_low, k_high) = (
                [stop - start for start, stop in ring_chunks(lengths[at], ring, member)]
                for member in (rank, source)
            )
            q0, k0 = offsets[at], keys[index]
            if source < rank:
                piece = Piece(q0, q0 + low + high, k0, k0 + k_low)
            else:
                piece = Piece(q0 + low, q0 + low + high, k0, k0 + k_low + k_high)
            if piece.q1 > piece.q0 and piece.k1 > piece.k0:
                pieces.append(piece)
        steps.append(tuple(pieces))
    return Passed(
        rows=None if all(passed) else _rows(offsets, passed),
        counts=tuple(_offsets(long, ring, member)[-1] for member in range(ring)),
        pieces=tuple(steps),
    )


def _gather(
    lengths: Sequence[int], ring: int, rank: int, offsets: Sequence[int], gathered: Sequence[bool]
) -> Gathered:
    documents = [at for at, wanted in enumerate(gathered) if wanted]
    short = [lengths[at] for at in documents]
    placed = [_offsets(short, ring, member) for member in range(ring)]
    counts = [0 if member == rank else ends[-1] for member, ends in enumerate(placed)]
    starts = list(accumulate(counts, initial=0))
    last = 2 * ring - 1
    order: list[Range] = []
    pieces: list[Piece] = []
    taken = 0  # rows of ``order`` so far
    for index, at in enumerate(documents):
        before = taken
        seen_by_low = 0
        for chunk in range(last - rank):  # those before this rank's high chunk
            if chunk == rank:
                seen_by_low = taken - before
                continue
            source = min(chunk, last - chunk)
            low, high = ring_chunks(lengths[at], ring, source)
            first = starts[source] + placed[source][index]
            if chunk >= ring:
                first += low[1] - low[0]
            tokens = low[1] - low[0] if chunk < ring else high[1] - high[0]
            order.append((first, first + tokens))
            taken += tokens
        low, high = ring_chunks(lengths[at], ring, rank)
        q0 = offsets[at]
        middle, q1 = q0 + low[1] - low[0], offsets[at + 1]
        if seen_by_low == taken - before:
            candidates = [Piece(q0, q1, before, taken)]
        else:
            candidates = [
                Piece(q0, middle, before, before + seen_by_low),
                Piece(middle, q1, before, taken),
            ]
        pieces += [piece for piece in candidates if piece.q1 > piece.q0 and piece.k1 > piece.k0]
    rows = _rows(offsets, gathered)
    none = concatenate_ranges([])
    return Gathered(
        fetch=Fetch(
            sent=tuple(none if member == rank else rows for member in range(ring)),
            counts=tuple(counts),
            local=none,
            order=concatenate_ranges(order),
        ),
        pieces=tuple(pieces),
    )
