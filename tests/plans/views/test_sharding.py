"""Sharding: every token is held exactly once, and never more than the padded share."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.sharding import list_held_ranges, ring_chunks, ring_tokens, ulysses_piece

lengths_strategy = st.lists(st.one_of(st.integers(1, 15), st.integers(1, 500)), max_size=12)


@given(lengths_strategy, st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
@example([1], 8, 1, 1)
@example([1, 1, 1], 4, 3, 2)
@example([5, 3, 16, 17], 3, 5, 1)
def test_every_token_is_held_once(lengths: list[int], ring: int, ulysses: int, tp: int) -> None:
    scheme = Scheme(tp=tp, ulysses=ulysses, ring=ring)
    slots = scheme.pad_micro_batch(lengths) // scheme.sp
    assert slots * scheme.sp == scheme.pad_micro_batch(lengths)
    times_held = [[0] * length for length in lengths]
    for r in range(ring):
        buffer = []  # (sequence, token) in the order of the ring buffer
        for sequence, length in enumerate(lengths):
            chunks = ring_chunks(length, ring, r)
            buffer += [(sequence, token) for chunk in chunks for token in range(*chunk)]
        assert len(buffer) == sum(ring_tokens(length, ring, r) for length in lengths)
        joined = []
        for u in range(ulysses):
            piece = ulysses_piece(len(buffer), ulysses, u)
            held = list_held_ranges(lengths, ring, r, piece)
            assert len(held) == len(lengths)
            local = [
                (sequence, token)
                for sequence, ranges in enumerate(held)
                for held_range in ranges
                for token in range(*held_range)
            ]
            for ranges in held:
                assert len(ranges) <= 2
                assert all(start < stop for start, stop in ranges)
                assert len(ranges) < 2 or ranges[0][1] < ranges[1][0]
            assert len(local) == piece[1] - piece[0] <= slots
            joined += local
            for sequence, token in local:
                times_held[sequence][token] += 1
        assert joined == buffer
    assert all(times == 1 for held in times_held for times in held)


def test_zigzag_of_one_sequence() -> None:
    assert [ring_chunks(9, 2, rank) for rank in range(2)] == [((0, 2), (6, 9)), ((2, 4), (4, 6))]
    assert list_held_ranges([9], 2, 0, (0, 5)) == [((0, 2), (6, 9))]
    assert list_held_ranges([9], 2, 1, (0, 4)) == [((2, 6),)]
    assert list_held_ranges([9, 4], 2, 0, (4, 7)) == [((8, 9),), ((0, 1), (3, 4))]
    assert list_held_ranges([9, 4], 2, 0, (0, 1)) == [((0, 1),), ()]


@pytest.mark.parametrize("ring", [1, 2, 3, 4, 7])
def test_causal_work_is_even_over_the_ring(ring: int) -> None:
    length = 2 * ring * 10
    work = [
        sum(token + 1 for chunk in ring_chunks(length, ring, rank) for token in range(*chunk))
        for rank in range(ring)
    ]
    assert len(set(work)) == 1
