"""Which tokens of a micro-batch a rank holds: zigzag over the ring, then split over ulysses.

A sequence of L tokens is cut at ``c · L // (2 · ring)`` into 2·ring chunks; ring rank r holds the
chunks r and 2·ring − 1 − r, so that causal work is even and nothing is padded. The *ring buffer*
of r is that of every sequence in packed order, low chunk before high chunk. Ulysses rank u holds
the piece ``[u·T // ulysses, (u+1)·T // ulysses)`` of the ring buffer's T tokens; the ranks of a tp
group hold the same tokens. A chunk has at most ⌈L / (2·ring)⌉ tokens, so that a rank holds at most
``Scheme.padded_tokens / (ulysses · ring)``.

Ranges are half-open and count tokens from 0.
"""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]


def ring_chunks(length: int, ring: int, rank: int) -> tuple[Range, Range]:
    """Return the low and the high chunk of a sequence on ring rank ``rank``.

    ``length``: tokens. Either may be empty if the sequence has fewer than 2·ring tokens.
    """
    parts = 2 * ring
    mirror = parts - 1 - rank
    return (
        (rank * length // parts, (rank + 1) * length // parts),
        (mirror * length // parts, (mirror + 1) * length // parts),
    )


def ring_tokens(length: int, ring: int, rank: int) -> int:
    """Count the tokens of a ``length``-token sequence in the ring buffer of ring rank ``rank``."""
    (low_start, low_stop), (high_start, high_stop) = ring_chunks(length, ring, rank)
    return low_stop - low_start + high_stop - high_start


def ulysses_piece(tokens: int, ulysses: int, rank: int) -> Range:
    """Return the piece of a ring buffer of ``tokens`` tokens that ulysses rank ``rank`` holds."""
    return rank * tokens // ulysses, (rank + 1) * tokens // ulysses


def list_held_ranges(
    lengths: Sequence[int], ring: int, ring_rank: int, piece: Range
) -> list[tuple[Range, ...]]:
    """List the ranges of each sequence's tokens in ``piece`` of a rank's buffer.

    ``piece``: of a ring rank. No range is empty; two are given apart only if tokens between them
    are elsewhere. A sequence with no token in the piece has none.
    """
    start, stop = piece
    held: list[tuple[Range, ...]] = []
    offset = 0  # of the chunk at hand in the ring buffer
    for length in lengths:
        if offset >= stop:
            held.append(())
            continue
        ranges: list[Range] = []
        for low, high in ring_chunks(length, ring, ring_rank):
            first = low + max(0, start - offset)
            last = min(high, low + stop - offset)
            offset += high - low
            if first >= last:
                continue
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        held.append(tuple(ranges))
    return held
