"""Chunks are consecutive, complete and as even as any consecutive split."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.planner.placement.even_chunks import chunk, least_chunks
from seqplan.planner.systems.programs.buckets import buckets_of

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def splits(items: list[int], parts: int) -> list[list[list[int]]]:
    """Every split of ``items`` into ``parts`` consecutive non-empty parts."""
    return [
        [items[i:j] for i, j in itertools.pairwise([0, *cuts, len(items)])]
        for cuts in itertools.combinations(range(1, len(items)), parts - 1)
    ]


@given(LENGTHS, st.integers(1, 8))
def test_the_largest_chunk_is_the_least_possible(lengths: list[int], micro_batches: int) -> None:
    chunks = chunk(lengths, micro_batches)
    in_order = [i for part in chunks for i in part]
    assert sorted(in_order) == list(range(len(lengths)))
    assert [lengths[i] for i in in_order] == sorted(lengths, reverse=True)
    assert len(chunks) == min(micro_batches, len(lengths))
    assert all(chunks)
    least = min(
        max(sum(part) for part in split)
        for split in splits(sorted(lengths, reverse=True), len(chunks))
    )
    assert max(sum(lengths[i] for i in part) for part in chunks) == least


@given(LENGTHS, st.integers(40, 100))
def test_least_chunks_is_the_first_number_that_fits(lengths: list[int], capacity: int) -> None:
    fitting = [
        m
        for m in range(1, len(lengths) + 1)
        if max(sum(lengths[i] for i in part) for part in chunk(lengths, m)) <= capacity
    ]
    assert least_chunks(lengths, capacity) == fitting[0]


def test_nothing_to_chunk_and_bad_arguments() -> None:
    assert chunk([], 3) == []
    assert least_chunks([], 10) == 0
    with pytest.raises(ValueError, match="1 or more, not 0"):
        chunk([1], 0)
    with pytest.raises(ValueError, match="11 tokens exceeds the capacity 10"):
        least_chunks([4, 11], 10)


@given(LENGTHS, st.integers(1, 5))
def test_buckets_add_the_least(lengths: list[int], most: int) -> None:
    buckets = buckets_of(lengths, most)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
    distinct = sorted(set(lengths))
    parts = min(most, len(distinct))
    assert len(buckets) == parts

    def added(split: list[list[int]]) -> int:
        return sum(part[-1] - n for part in split for n in lengths if n in part)

    padding = sum(max(lengths[i] for i in b) - lengths[j] for b in buckets for j in b)
    assert padding == min(added(split) for split in splits(distinct, parts))


def test_buckets_of_many_lengths_stay_exact_far_from_zero() -> None:
    lengths = [*range(1000, 1030), *range(190_000, 190_020)]
    buckets = buckets_of(lengths, 12)
    assert len(buckets) == 12
    assert max(lengths[i] for i in buckets[0]) == 190_019
    assert all(max(lengths[i] for i in b) - min(lengths[i] for i in b) < 20 for b in buckets)
