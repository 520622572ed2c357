"""Balancing over ranks of which some are slower than others, or lost."""

from typing import Any

import numpy as np
import pytest
from balance_cases import COST, EXECUTIONS, time_assignments
from hypothesis import given, settings
from hypothesis import strategies as st
from step_lengths import CODE

from seqplan import Cost, Mode, balance
from seqplan.planner.balance.balanced import Execution

factors = st.one_of(st.none(), st.sampled_from([1.0, 1.0, 1.1, 1.3, 2.0]))


def time_ms(
    micro_batches: list[list[list[int]]],
    lengths: list[int],
    cost: Cost,
    slowdown: list[float | None],
    execution: str,
) -> float:
    """Time micro-batches rank by rank, from the definition."""
    times = [
        [
            factor * (sum(lengths[i] * (cost.a * lengths[i] + cost.b) for i in micro) + cost.c)
            if micro
            else 0.0
            for micro in of_rank
        ]
        for of_rank, factor in zip(micro_batches, slowdown, strict=True)
        if factor is not None
    ]
    if execution == "uniform":
        return max(map(sum, times))
    return sum(map(max, zip(*times, strict=True)))


@settings(max_examples=53)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    slowdown=st.lists(factors, min_size=1, max_size=6).filter(any),
    room=st.integers(0, 200),
    together=st.booleans(),
    execution=st.sampled_from(EXECUTIONS),
    count_multiple=st.integers(1, 3),
)
def test_every_sequence_once_and_none_on_a_lost_rank(
    lengths: list[int], slowdown: list[float | None], room: int, together: bool, **options: Any
) -> None:
    cost, capacity, ranks = Cost(1e-3, 0.1, 1.0), 2 * max(lengths) + room, len(slowdown)
    options["keep_together"] = [i // 2 for i in range(len(lengths))] if together else None
    balanced = balance(lengths, ranks, capacity, cost, slowdown=slowdown, **options)
    assert sorted(balanced.order()) == list(range(len(lengths)))
    for of_rank, factor in zip(balanced.micro_batches, slowdown, strict=True):
        if factor is None:
            assert not of_rank
        else:
            assert of_rank
            assert len(of_rank) % options["count_multiple"] == 0
        for micro in of_rank:
            assert sum(lengths[i] for i in micro) <= capacity
    expected = time_ms(balanced.micro_batches, lengths, cost, slowdown, options["execution"])
    assert balanced.predicted_ms == pytest.approx(expected)
    assert balanced.lower_bound_ms <= balanced.predicted_ms
    assert balanced.slowdown == tuple(slowdown)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    slowdown=st.sampled_from([[1.0, 2.0], [1.0, 1.3, 2.0], [1.2, 1.2], [1.1, 3.0]]),
    room=st.integers(0, 12),
    cost=st.sampled_from([Cost(1e-3, 0.1, 0.0), Cost(0.05, 1.0, 1.0), Cost(0.0, 0.1, 3.0)]),
    execution=st.sampled_from(EXECUTIONS),
    modes=st.booleans(),
)
def test_the_bound_is_below_every_way_there_is(
    lengths: list[int], room: int, cost: Cost, modes: bool, **options: Any
) -> None:
    execution, slowdown = options["execution"], options["slowdown"]
    capacity, ranks = max(lengths) + room, len(slowdown)
    heavier = Cost(cost.a * 1.3, cost.b * 1.3, cost.c)
    light = capacity // 2

    def time_micro_ms(part: list[int]) -> float:
        return (cost if not modes or sum(part) <= light else heavier).micro_batch_ms(part)

    steps = 3 if len(lengths) * ranks <= 12 else 2
    timed = time_assignments(lengths, capacity, time_micro_ms, execution, steps, slowdown)
    least = min((time for time, _ in timed), default=float("inf"))
    if modes and light:
        both = [Mode("none", light, cost), Mode("full", capacity, heavier)]
        balanced = balance(lengths, ranks, modes=both, **options)
    else:
        balanced = balance(lengths, ranks, capacity, heavier if modes else cost, **options)
    assert balanced.lower_bound_ms <= least * (1 + 1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_one_slow_rank_costs_its_missing_speed(
    execution: Execution, ranks: int, factor: float
) -> None:
    lengths = np.random.default_rng(0).choice(CODE[CODE <= 8192], 32 * ranks)
    slowdown: list[float | None] = [1.0] * ranks
    slowdown[ranks // 3] = factor
    equal = balance(lengths, ranks, 16_384, COST, execution=execution)
    slow = balance(lengths, ranks, 16_384, COST, execution=execution, slowdown=slowdown)
    unaware = time_ms(equal.micro_batches, lengths.tolist(), COST, slowdown, execution)
    ideal = ranks / (ranks - 1 + 1 / factor)
    assert slow.predicted_ms < equal.predicted_ms * ideal * 1.01
    assert slow.predicted_ms < unaware
    assert slow.gap < 0.02


def test_a_lost_rank_is_like_a_rank_less() -> None:
    lengths = CODE[CODE <= 32_768][:200].tolist()
    without = balance(lengths, 3, 32_768, COST)
    lost = balance(lengths, 4, 32_768, COST, slowdown=[1.0, None, 1.0, 1.0])
    assert lost.predicted_ms == without.predicted_ms
    assert [lost.micro_batches[k] for k in (0, 2, 3)] == without.micro_batches
    assert lost.rank_ms[1] == 0
    assert lost.imbalance == pytest.approx(without.imbalance)


def test_equal_factors_only_scale_times() -> None:
    lengths = CODE[CODE <= 32_768][:200].tolist()
    plain = balance(lengths, 4, 32_768, COST)
    assert balance(lengths, 4, 32_768, COST, slowdown=[1.0] * 4) == plain
    scaled = balance(lengths, 4, 32_768, COST, slowdown=[2.0] * 4)
    assert scaled.predicted_ms == pytest.approx(2 * plain.predicted_ms)


@pytest.mark.parametrize("factor", [1.1, 1.3])
def test_ranks_that_are_nearly_full_of_tokens(factor: float) -> None:
    """Filled to targets they take 1.3 and 1.5 % more than the bound."""
    lengths = np.random.default_rng(13).lognormal(6.2, 1.2, 256).astype(int).clip(1, 12_000)
    capacity = int(lengths.sum() / (7 + 1 / factor) / 0.992)
    slowdown = [1.0] * 7 + [factor]
    cost = Cost(1e-6, 0.1, 65.0)
    slow = balance(lengths, 8, capacity, cost, execution="lockstep", slowdown=slowdown)
    assert [len(of_rank) for of_rank in slow.micro_batches] == [1] * 8
    assert slow.gap < 0.007


def test_tokens_that_fast_ranks_cannot_hold_bind() -> None:
    """In one micro-step the slow rank has 900 tokens at least, and two cost their overhead."""
    slowdown = [1.0] * 7 + [2.0]
    slow = balance(
        [100] * 79, 8, 1000, Cost(0.0, 1.0, 50.0), execution="lockstep", slowdown=slowdown
    )
    assert [len(of_rank) for of_rank in slow.micro_batches] == [2] * 8
    assert slow.lower_bound_ms == pytest.approx(7900 / 7.5 + 100)
