"""Balancing over equal ranks: every sequence once, within memory, and near the bound."""

import itertools
import os
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from balance_cases import COST, EXECUTIONS, time_assignments
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.exhaustive import partitions
from step_lengths import CODE

from seqplan import Balanced, Cost, Mode, balance
from seqplan.planner.balance.balanced import Execution, ModePricing
from seqplan.planner.placement.fill import VARIABLE


def check(
    balanced: Balanced, ranks: int, capacity: int, pad_to: int = 1, multiple: int = 1
) -> None:
    """What holds of every result."""
    assert len(balanced.micro_batches) == ranks
    assert sorted(balanced.order()) == list(range(len(balanced.lengths)))
    assert [balanced.order()[place] for place in balanced.inverse()] == list(
        range(len(balanced.lengths))
    )
    counts = [len(of_rank) for of_rank in balanced.micro_batches]
    assert all(count % multiple == 0 for count in counts)
    if balanced.execution == "lockstep":
        assert len(set(counts)) == 1
    times = []
    assert isinstance(balanced.pricing, ModePricing)
    for of_rank in balanced.micro_batches:
        times.append([])
        for micro in of_rank:
            part = [balanced.lengths[i] for i in micro]
            assert sum(-(-length // pad_to) * pad_to for length in part) <= capacity
            cost = min(
                (
                    mode.cost.micro_batch_ms(part)
                    for mode in balanced.pricing.modes
                    if sum(-(-length // pad_to) * pad_to for length in part) <= mode.capacity
                ),
                default=0.0,
            )
            times[-1].append(cost if micro else 0.0)
    if balanced.execution == "lockstep":
        predicted = sum(max(of_micro_step) for of_micro_step in zip(*times, strict=True))
    else:
        predicted = max(sum(of_rank) for of_rank in times)
    assert balanced.predicted_ms == pytest.approx(predicted)
    assert balanced.lower_bound_ms <= balanced.predicted_ms
    assert balanced.rank_ms == pytest.approx([sum(of_rank) for of_rank in times])
    assert balanced.imbalance >= -1e-12


costs = st.builds(
    Cost,
    st.sampled_from([0.0, 1e-3, 0.05]),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from([0.0, 1.0, 30.0]),
)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    ranks=st.integers(1, 6),
    room=st.integers(0, 200),
    cost=costs,
    execution=st.sampled_from(EXECUTIONS),
    count_multiple=st.integers(1, 3),
    pad_to=st.sampled_from([1, 4, 16]),
)
def test_plans_are_sound_for_any_options(
    lengths: list[int], ranks: int, room: int, cost: Cost, pad_to: int, **options: Any
) -> None:
    capacity = -(-max(lengths) // pad_to) * pad_to + room
    balanced = balance(lengths, ranks, capacity, cost, pad_to=pad_to, **options)
    check(balanced, ranks, capacity, pad_to, options["count_multiple"])
    micro_batches = [micro for of_rank in balanced.micro_batches for micro in of_rank]
    if not all(micro_batches):
        assert len(lengths) < len(micro_batches)
    again = balance(np.array(lengths), ranks, capacity, cost, pad_to=pad_to, **options)
    assert again.micro_batches == balanced.micro_batches


@settings(max_examples=27)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=4, max_size=40),
    ranks=st.integers(1, 4),
    room=st.integers(0, 150),
    cost=costs,
    group=st.integers(1, 3),
    execution=st.sampled_from(EXECUTIONS),
    equal_samples=st.booleans(),
    count_multiple=st.integers(1, 2),
)
def test_sequences_stay_together_or_are_equally_many(
    lengths: list[int], ranks: int, room: int, cost: Cost, group: int, **options: Any
) -> None:
    if options["equal_samples"]:
        most = len(lengths) - len(lengths) % (group * ranks)
        if not most:
            return
        lengths = lengths[:most]
    keys = [f"prompt {i // group}" for i in range(len(lengths))]
    capacity = group * max(lengths) + room
    balanced = balance(lengths, ranks, capacity, cost, keep_together=keys, **options)
    check(balanced, ranks, capacity, multiple=options["count_multiple"])
    for of_rank in balanced.micro_batches:
        for micro in of_rank:
            held = {keys[i] for i in micro}
            assert sum(key in held for key in keys) == len(micro)
    if options["equal_samples"]:
        assert {sum(map(len, of_rank)) for of_rank in balanced.micro_batches} == {
            len(lengths) // ranks
        }


@settings(max_examples=27)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    room=st.integers(0, 12),
    cost=costs,
    execution=st.sampled_from(EXECUTIONS),
    pad_to=st.sampled_from([1, 1, 3]),
)
def test_the_bound_is_below_every_way_there_is(
    lengths: list[int], room: int, cost: Cost, execution: Execution, pad_to: int
) -> None:
    capacity = max(lengths) + room + 2
    padded = [-(-length // pad_to) * pad_to for length in lengths]
    if sum(padded) > 3 * 2 * (capacity - capacity % pad_to) or max(padded) > capacity:
        return
    balanced = balance(lengths, 2, capacity, cost, execution=execution, pad_to=pad_to)
    timed = (
        time_assignments(lengths, capacity, cost.micro_batch_ms, execution, n) for n in (1, 2, 3)
    )
    least = min(time for ways in timed for time, _ in ways)
    # Without padding more fits, so that the optimum is no higher.
    assert least <= balanced.predicted_ms * (1 + 1e-9)
    if pad_to == 1:
        assert balanced.lower_bound_ms <= least * (1 + 1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("sequences", "ranks", "context", "draws"),
    [(4096, 128, 32_768, 1), (512, 16, 4096, 3), (512, 16, 32_768, 3), (512, 64, 32_768, 3)],
)
def test_real_lengths_are_near_the_bound(
    execution: Execution, sequences: int, ranks: int, context: int, draws: int
) -> None:
    gaps = []
    for seed in range(draws):
        drawn = np.random.default_rng(seed).choice(CODE, sequences)
        balanced = balance(np.minimum(drawn, context), ranks, context, COST, execution=execution)
        check(balanced, ranks, context)
        gaps.append(balanced.gap)
    assert sorted(gaps)[len(gaps) // 2] < 0.015, gaps
    assert max(gaps) < 0.04, gaps


def test_the_same_without_a_compiler() -> None:
    lengths = np.minimum(CODE[:300], 8192)
    for execution in EXECUTIONS:
        compiled = balance(lengths, 8, 8192, COST, execution=execution)
        with patch.dict(os.environ, {VARIABLE: "python"}):
            assert balance(lengths, 8, 8192, COST, execution=execution) == compiled


def test_one_long_sequence_is_alone_on_its_rank() -> None:
    balanced = balance([8000, *[100] * 30], 4, 8192, Cost(1e-3, 0.0, 0.0), execution="uniform")
    (alone,) = [of_rank for of_rank in balanced.micro_batches if [0] in of_rank]
    assert alone == [[0]]
    assert balanced.gap == 0


def test_numbers_of_other_kinds_are_taken() -> None:
    whole = balance([5, 7, 9], 2, 10, COST)
    assert balance(np.array([5.0, 7.0, 9.0]), 2, 10, COST).micro_batches == whole.micro_batches
    assert balance(np.array([5, 7, 9], np.uint16), 2, 10, COST) == whole


LIGHT, HEAVY = Mode("none", 40, Cost(0.001, 1.0, 3.0)), Mode("full", 200, Cost(0.001, 1.35, 3.0))


@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=30),
    ranks=st.integers(1, 4),
    execution=st.sampled_from(EXECUTIONS),
    count_multiple=st.integers(1, 2),
    equal_samples=st.booleans(),
)
def test_micro_batches_have_the_cheapest_mode_that_holds_them(
    lengths: list[int], ranks: int, **options: Any
) -> None:
    if options["equal_samples"]:
        lengths = (lengths * ranks)[: len(lengths) // ranks * ranks] or [5] * ranks
    balanced = balance(lengths, ranks, modes=[HEAVY, LIGHT], **options)
    check(balanced, ranks, HEAVY.capacity, multiple=options["count_multiple"])
    for of_rank, names in zip(balanced.micro_batches, balanced.recompute, strict=True):
        for micro, name in zip(of_rank, names, strict=True):
            assert name == ("none" if sum(lengths[i] for i in micro) <= 40 else "full")
    one = balance(lengths, ranks, HEAVY.capacity, HEAVY.cost, **options)
    assert balanced.predicted_ms <= one.predicted_ms * (1 + 1e-9)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bound_of_modes_holds_for_every_way(execution: Execution) -> None:
    """Two ranks, every assignment and every split into micro-batches, all by enumeration."""
    rng = np.random.default_rng(3)
    for _ in range(25):
        lengths = rng.integers(5, 90, int(rng.integers(2, 6))).tolist()
        best = min(
            _time(first, second, execution)
            for side in itertools.product((0, 1), repeat=len(lengths))
            for first in _splits([n for n, s in zip(lengths, side, strict=True) if not s])
            for second in _splits([n for n, s in zip(lengths, side, strict=True) if s])
        )
        balanced = balance(lengths, 2, modes=[LIGHT, HEAVY], execution=execution)
        assert balanced.lower_bound_ms <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= balanced.predicted_ms <= 1.35 * best


@pytest.mark.parametrize(
    ("lengths", "ranks", "text"),
    [
        ([1], 1, "1 sequence, 1 token in 1 micro-batch on 1 rank, "),
        ([90, 80, 70], 2, "3 sequences, 240 tokens in 1 to 2 micro-batches on each of 2 ranks, "),
    ],
)
def test_a_balance_as_text(lengths: list[int], ranks: int, text: str) -> None:
    balanced = balance(lengths, ranks, 100, COST, execution="uniform")
    assert repr(balanced).startswith(f"<Balanced: {text}")


def _splits(lengths: list[int]) -> list[list[float]]:
    """The costs of the micro-batches of every way to split a rank's sequences, longest first."""
    costs = []
    for parts in partitions(lengths):
        fits = all(sum(part) <= HEAVY.capacity for part in parts)
        if fits:
            modes = [LIGHT if sum(part) <= LIGHT.capacity else HEAVY for part in parts]
            pairs = zip(modes, parts, strict=True)
            costs.append(sorted((m.cost.micro_batch_ms(part) for m, part in pairs), reverse=True))
    return costs


def _time(first: list[float], second: list[float], execution: str) -> float:
    if execution == "uniform":
        return max(sum(first), sum(second))
    # Micro-batches side by side from the longest on: no other order of theirs is shorter.
    return sum(map(max, itertools.zip_longest(first, second, fillvalue=0.0)))


def test_whole_numbers_as_costs_are_taken_with_sequences_that_stay_together() -> None:
    lengths, groups = [40, 27, 97, 54, 60, 46, 57, 83], [2, 0, 2, 5, 4, 1, 4, 1]
    balanced = balance(lengths, 2, 400, Cost(0, 1, 50), keep_together=groups)
    same = balance(lengths, 2, 400, Cost(0.0, 1.0, 50.0), keep_together=groups)
    assert balanced.micro_batches == same.micro_batches
