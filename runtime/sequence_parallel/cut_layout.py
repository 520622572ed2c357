"""The attention of documents that a window or a chunk cuts, on one rank of a ring.

Such a document does not go round the ring. A rank fetches the keys that its two chunks of it see,
including its keys: one run of positions, or two if they do not touch. Every query sees its
key, and the last row of a piece is that of its last key: all is one causal mask aligned at the
bottom right, with the window; a chunk of a mask makes separate pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqplan.plans.views.sharding import Range, ring_chunks
from seqplan.runtime.sequence_parallel.fetch_layout import Fetch, Segment, fetch_layout
from seqplan.runtime.sequence_parallel.kernels import Piece, Pieces
from seqplan.runtime.sequence_parallel.masks import Mask


@dataclass(frozen=True, slots=True)
class Cut:
    """The documents that a mask cuts: ``pieces`` of this rank's queries and the keys they see.

    ``fetch``: None on a ring of one rank, whose keys are its buffer; ``window``: the mask's.
    """

    fetch: Fetch | None
    pieces: Pieces
    window: int | None


def cut_layout(
    lengths: Sequence[int],
    ring: int,
    rank: int,
    mask: Mask,
    offsets: Sequence[Sequence[int]],
) -> Cut:
    """Lay out the documents of ``lengths`` tokens that ``mask`` cuts, at least one.

    ``offsets``: of each document in the buffer of each ring rank.
    """
    cut = [at for at, length in enumerate(lengths) if mask.cuts(length)]
    pieces: list[Piece] = []
    keys = 0  # rows of keys of the documents so far
    for at in cut:
        row = offsets[rank][at]
        runs = _seen_runs(lengths[at], ring, rank, mask)
        starts = []
        for start, stop in runs:
            starts.append(keys if ring > 1 else row)
            keys += stop - start
        for chunk in _list_held_chunks(lengths[at], ring, rank):
            visible, first_key = next(
                (run, key) for run, key in zip(runs, starts, strict=True) if chunk[1] <= run[1]
            )
            for start, stop in _mask_parts(chunk, mask):
                q0, k0 = row + start - chunk[0], first_key + mask.first_seen(start) - visible[0]
                k1 = first_key + stop - visible[0]
                pieces.append(Piece(q0, q0 + stop - start, k0, k1))
            row += chunk[1] - chunk[0]

    def find_needed(member: int) -> list[Segment]:
        return [
            segment
            for at in cut
            for run in _seen_runs(lengths[at], ring, member, mask)
            for segment in _segments(lengths[at], ring, run, [of_rank[at] for of_rank in offsets])
        ]

    fetch = fetch_layout(ring, rank, find_needed) if ring > 1 else None
    return Cut(fetch, tuple(pieces), mask.window)


def _list_held_chunks(length: int, ring: int, rank: int) -> list[Range]:
    """List the positions that a rank holds, as one range if its chunks touch; none is empty."""
    low, high = ring_chunks(length, ring, rank)
    if low[1] == high[0]:
        low, high = (low[0], high[1]), (high[1], high[1])
    return [chunk for chunk in (low, high) if chunk[0] < chunk[1]]


def _mask_parts(positions: Range, mask: Mask) -> Iterator[Range]:
    """Yield the parts of a range of positions, each in one chunk of the mask."""
    start, stop = positions
    while start < stop:
        end = stop if mask.chunk is None else min(stop, mask.first_seen(start) + mask.chunk)
        yield start, end
        start = end


def _seen_runs(length: int, ring: int, rank: int, mask: Mask) -> list[Range]:
    """List the positions that a rank's queries see, as ascending ranges that do not touch."""
    runs: list[Range] = []
    for start, stop in _list_held_chunks(length, ring, rank):
        first = mask.first_seen(start)
        if runs and first <= runs[-1][1]:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((first, stop))
    return runs


def _segments(
    length: int, ring: int, positions: Range, offsets: Sequence[int]
) -> Iterator[Segment]:
    """Yield where a range of a document's positions is held, ascending.

    ``offsets``: of the document in each ring rank's buffer.
    """
    parts = 2 * ring
    start, stop = positions
    part = start * parts // length
    while part * length // parts < stop:
        source = min(part, parts - 1 - part)
        low, high = ring_chunks(length, ring, source)
        first, last = low if part < ring else high
        row = offsets[source] if part < ring else offsets[source] + low[1] - low[0]
        held = max(first, start), min(last, stop)
        if held[0] < held[1]:
            yield Segment(source, row + held[0] - first, row + held[1] - first)
        part += 1
