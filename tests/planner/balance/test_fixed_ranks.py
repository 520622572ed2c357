"""Packing for ranks that have their sequences already: micro-steps that match, none empty."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.exhaustive import partitions

from seqplan import Cost
from seqplan.planner.balance.fixed_ranks import balance_fixed


def least_ms(of_ranks: list[list[int]], capacity: int, cost: Cost) -> float:
    """Σ micro-steps of the best packing by enumeration, for any number of micro-steps."""
    ways = [
        [
            sorted(
                (cost.micro_batch_ms([of_rank[i] for i in part]) for part in parts), reverse=True
            )
            for parts in partitions(range(len(of_rank)))
            if all(sum(of_rank[i] for i in part) <= capacity for part in parts)
        ]
        for of_rank in of_ranks
    ]
    # The slowest of each rank together is best: sorted times, with no micro-batch empty.
    return min(
        sum(max(of_micro_step) for of_micro_step in zip(*choice, strict=True))
        for choice in product(*ways)
        if len({len(times) for times in choice}) == 1
    )


@settings(max_examples=36)
@given(
    of_ranks=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=3),
    room=st.integers(0, 40),
    a=st.sampled_from([0.0, 0.05]),
    c=st.sampled_from([0.0, 10.0]),
    multiple=st.integers(1, 2),
)
def test_every_rank_packs_its_sequences_near_the_optimum(
    of_ranks: list[list[int]], room: int, a: float, c: float, multiple: int
) -> None:
    cost, capacity = Cost(a, 1.0, c), max(map(max, of_ranks)) + room
    try:
        balanced = balance_fixed(of_ranks, capacity, cost, count_multiple=multiple)
    except ValueError as error:
        assume("sequences for" in str(error))
        return
    assert len({len(of_rank) for of_rank in balanced.micro_batches}) == 1
    assert len(balanced.micro_batches[0]) % multiple == 0
    first = 0
    for of_rank, micro_batches in zip(of_ranks, balanced.micro_batches, strict=True):
        assert all(micro_batches)
        assert sorted(i - first for micro in micro_batches for i in micro) == list(
            range(len(of_rank))
        )
        assert all(sum(of_rank[i - first] for i in micro) <= capacity for micro in micro_batches)
        first += len(of_rank)
    assert balanced.lower_bound_ms <= balanced.predicted_ms
    if multiple == 1:
        best = least_ms(of_ranks, capacity, cost)
        assert balanced.lower_bound_ms * (1 - 1e-6) <= best <= balanced.predicted_ms * (1 + 1e-9)
        assert balanced.predicted_ms <= 1.6 * best


def test_others_fill_the_time_of_a_rank_with_a_long_sequence() -> None:
    """The other ranks' sequences fill the micro-steps of a long sequence.

    The first micro-batch of every rank lasts as long as the long sequence, so rank 1 puts half
    of its sequences there and none of its micro-steps waits.
    """
    balanced = balance_fixed([[800, *[100] * 4], [100] * 12], 1_000, Cost(0.0, 1.0, 0.0))
    assert balanced.predicted_ms == pytest.approx(1_200.0)
    assert balanced.gap < 1e-6
