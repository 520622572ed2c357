"""The pieces of all steps cover exactly the causal mask of every document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.plans.views.sharding import ring_chunks
from seqplan.runtime.sequence_parallel.kernels import Pieces
from seqplan.runtime.sequence_parallel.ring_layout import ring_layout


def row_positions(lengths: list[int], ring: int, rank: int) -> list[tuple[int, int]]:
    """(document, position) of every row of a ring rank's buffer."""
    return [
        (document, position)
        for document, length in enumerate(lengths)
        for start, stop in ring_chunks(length, ring, rank)
        for position in range(start, stop)
    ]


def pairs(
    pieces: Pieces,
    queries: list[tuple[int, int]],
    keys: list[tuple[int, int]],
    *,
    causal: bool,
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [
        (queries[q], keys[k])
        for q0, q1, k0, k1 in pieces
        for q in range(q0, q1)
        for k in range(k0, k1 if not causal else k0 + q - q0 + 1)
    ]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ring=st.integers(1, 5),
    gather_below=st.integers(0, 12),
)
def test_every_query_meets_every_earlier_key_once(
    lengths: list[int], ring: int, gather_below: int
) -> None:
    buffers = [row_positions(lengths, ring, rank) for rank in range(ring)]
    layouts = [ring_layout(lengths, ring, rank, gather_below=gather_below) for rank in range(ring)]
    met = []
    for rank, layout in enumerate(layouts):
        mine = buffers[rank]
        assert layout.tokens == len(mine)
        met += pairs(layout.own, mine, mine, causal=True)
        if layout.gathered is not None:
            everyone = [
                buffers[member][row]
                for member, other in enumerate(layouts)
                if other.gathered is not None
                for row in other.gathered.rows
            ]
            assert layout.gathered.counts == tuple(
                len(other.gathered.rows) for other in layouts if other.gathered is not None
            )
            order = layout.gathered.order
            assert len(np.unique(order)) == len(order)
            keys = [everyone[row] for row in order]
            met += pairs(layout.gathered.pieces, mine, keys, causal=False)
        if layout.passed is not None:
            for step, pieces in enumerate(layout.passed.pieces, start=1):
                source = (rank - step) % ring
                sender = layouts[source].passed
                assert sender is not None
                rows = range(len(buffers[source])) if sender.rows is None else sender.rows
                assert layout.passed.counts[source] == len(rows)
                met += pairs(pieces, mine, [buffers[source][row] for row in rows], causal=False)
    wanted = [
        ((document, query), (document, key))
        for document, length in enumerate(lengths)
        for query in range(length)
        for key in range(query + 1)
    ]
    assert sorted(met) == wanted


@pytest.mark.parametrize("ring", [2, 3, 8])
def test_work_is_even_over_the_ring(ring: int) -> None:
    """Zigzag: every rank computes the same number of score pairs, but for rounding."""
    work = []
    for rank in range(ring):
        layout = ring_layout([2 * ring * 50], ring, rank, gather_below=0)
        assert layout.passed is not None
        own = sum((q1 - q0) * (q1 - q0 + 1) // 2 for q0, q1, _, _ in layout.own)
        work.append(
            own
            + sum(
                (q1 - q0) * (k1 - k0)
                for pieces in layout.passed.pieces
                for q0, q1, k0, k1 in pieces
            )
        )
    assert max(work) == min(work)


def test_gathered_documents_have_at_most_three_pieces_whatever_the_ring() -> None:
    for rank in range(16):
        layout = ring_layout([999], 16, rank, gather_below=1000)
        assert layout.passed is None
        assert layout.gathered is not None
        assert len(layout.own) + len(layout.gathered.pieces) <= 3
