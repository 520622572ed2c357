"""The pieces of all steps cover exactly the causal mask of every document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.plans.views.sharding import ring_chunks
from seqplan.runtime.sequence_parallel.fetch_layout import Fetch
from seqplan.runtime.sequence_parallel.kernels import Pieces
from seqplan.runtime.sequence_parallel.masks import Mask
from seqplan.runtime.sequence_parallel.ring_layout import ring_layout


def row_positions(lengths: list[int], ring: int, rank: int) -> list[tuple[int, int]]:
    """(document, position) of every row of a ring rank's buffer."""
    return [
        (document, position)
        for document, length in enumerate(lengths)
        for start, stop in ring_chunks(length, ring, rank)
        for position in range(start, stop)
    ]


Row = tuple[int, int]


def pairs(
    pieces: Pieces, queries: list[Row], keys: list[Row], *, causal: bool, window: int | None = None
) -> list[tuple[Row, Row]]:
    """The queries and keys of pieces, which are aligned at the bottom right."""
    met = []
    for q0, q1, k0, k1 in pieces:
        for q in range(q0, q1):
            diagonal = k1 - (q1 - q) if causal else k1 - 1
            first = k0 if window is None else max(k0, diagonal - window + 1)
            met += [(queries[q], keys[k]) for k in range(first, diagonal + 1)]
    return met


def fetched(fetches: list[Fetch], rank: int, buffers: list[list[Row]]) -> list[Row]:
    """What a rank has after an exchange, as its pieces count it; sizes agree on both sides."""
    mine = fetches[rank]
    rows = [buffers[rank][row] for row in mine.local]
    for member, other in enumerate(fetches):
        assert len(other.sent[rank]) == mine.counts[member]
        assert len(set(other.sent[rank].tolist())) == len(other.sent[rank])
        rows += [buffers[member][row] for row in other.sent[rank]]
    assert len(np.unique(mine.order)) == len(mine.order)
    return [rows[at] for at in mine.order]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ring=st.integers(1, 5),
    gather_below=st.integers(0, 12),
    mask=st.one_of(
        st.just(Mask()),
        st.integers(1, 40).map(lambda window: Mask(window=window)),
        st.integers(1, 40).map(lambda chunk: Mask(chunk=chunk)),
    ),
)
def test_every_query_meets_every_key_that_it_sees_once(
    lengths: list[int], ring: int, gather_below: int, mask: Mask
) -> None:
    buffers = [row_positions(lengths, ring, rank) for rank in range(ring)]
    layouts = [
        ring_layout(lengths, ring, rank, mask, gather_below=gather_below) for rank in range(ring)
    ]
    met = []
    for rank, layout in enumerate(layouts):
        mine = buffers[rank]
        assert layout.tokens == len(mine)
        met += pairs(layout.local, mine, mine, causal=True)
        if layout.gathered is not None:
            fetches = [other.gathered.fetch for other in layouts if other.gathered is not None]
            keys = fetched(fetches, rank, buffers)
            met += pairs(layout.gathered.pieces, mine, keys, causal=False)
        if layout.cut is not None:
            keys = mine
            if ring > 1:
                fetches = [
                    other.cut.fetch
                    for other in layouts
                    if other.cut is not None and other.cut.fetch is not None
                ]
                keys = fetched(fetches, rank, buffers)
            met += pairs(layout.cut.pieces, mine, keys, causal=True, window=mask.window)
        if layout.passed is not None:
            for step, pieces in enumerate(layout.passed.pieces, start=1):
                source = (rank - step) % ring
                sender = layouts[source].passed
                rows = range(len(buffers[source])) if sender.rows is None else sender.rows
                assert layout.passed.counts[source] == len(rows)
                met += pairs(pieces, mine, [buffers[source][row] for row in rows], causal=False)
    wanted = [
        ((document, query), (document, key))
        for document, length in enumerate(lengths)
        for query in range(length)
        for key in range(query + 1)
        if mask.window is None or query - key < mask.window
        if mask.chunk is None or query // mask.chunk == key // mask.chunk
    ]
    assert sorted(met) == wanted


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ring=st.integers(1, 5),
    gather_below=st.integers(0, 12),
)
def test_causal_pieces_without_a_window_have_as_many_keys_as_queries(
    lengths: list[int], ring: int, gather_below: int
) -> None:
    """Kernels rely on it that align a causal mask at the top left, and support no windows."""
    for rank in range(ring):
        layout = ring_layout(lengths, ring, rank, gather_below=gather_below)
        assert layout.cut is None
        assert all(q1 - q0 == k1 - k0 for q0, q1, k0, k1 in layout.local)


@pytest.mark.parametrize("ring", [2, 3, 8])
def test_work_is_even_over_the_ring(ring: int) -> None:
    """Zigzag: every rank computes the same number of score pairs, but for rounding."""
    work = []
    for rank in range(ring):
        layout = ring_layout([2 * ring * 50], ring, rank, gather_below=0)
        local = sum((q1 - q0) * (q1 - q0 + 1) // 2 for q0, q1, _, _ in layout.local)
        work.append(
            local
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
        assert len(layout.local) + len(layout.gathered.pieces) <= 3
