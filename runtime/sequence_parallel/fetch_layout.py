"""Which rows of each rank's keys and values every rank of a ring fetches in one transfer.

All of it follows from the documents' lengths, so that sender and receiver agree without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqplan.runtime.sequence_parallel.kernels.rows import concatenate_ranges


class Segment(NamedTuple):
    """Rows ``[start, stop)`` of the buffer of ring rank ``source``."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """One transfer of keys and values within a ring, as one rank sees it.

    ``sent``: this rank's rows that each ring rank gets, int64, none for itself; ``counts``: rows
    that come from each, 0 from itself; ``local``: this rank's rows that it needs, too;
    ``order``: places of the needed rows, as pieces count them, among its local ones and then those
    that come, in rank order. No row is needed twice.
    """

    sent: tuple[npt.NDArray[np.int64], ...]
    counts: tuple[int, ...]
    local: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]


def fetch_layout(ring: int, rank: int, needed: Callable[[int], Sequence[Segment]]) -> Fetch:
    """Lay out the transfer in which each ring rank m gets ``needed(m)``, in order."""
    mine = needed(rank)
    counts = [0] * ring
    for source, start, stop in mine:
        counts[source] += stop - start
    # Where the next rows of each rank are: this rank's come first.
    next_row, rows = [0] * ring, counts[rank]
    for source in range(ring):
        if source != rank:
            next_row[source] = rows
            rows += counts[source]
    order = []
    for source, start, stop in mine:
        order.append((next_row[source], next_row[source] + stop - start))
        next_row[source] += stop - start
    counts[rank] = 0
    return Fetch(
        sent=tuple(
            _rows_of(rank, needed(member)) if member != rank else concatenate_ranges([])
            for member in range(ring)
        ),
        counts=tuple(counts),
        local=_rows_of(rank, mine),
        order=concatenate_ranges(order),
    )


def _rows_of(rank: int, segments: Sequence[Segment]) -> npt.NDArray[np.int64]:
    return concatenate_ranges([(start, stop) for source, start, stop in segments if source == rank])
