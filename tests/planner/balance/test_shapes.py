"""Micro-batches of few shapes."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from balance_cases import COST, EXECUTIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from step_lengths import CODE

from seqplan import Cost, Mode, balance
from seqplan.planner.balance.balanced import Execution, ModePricing
from seqplan.planner.balance.shapes import MOST_SIZES, choose_shapes, pad_to_shape


def padding(sizes: list[int], shapes: tuple[int, ...]) -> int:
    return sum(pad_to_shape(size, shapes) - size for size in sizes)


@settings(max_examples=67)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=9), number=st.integers(1, 4))
def test_chosen_shapes_need_the_least_padding_of_all(sizes: list[int], number: int) -> None:
    shapes = choose_shapes(sizes, number)
    assert len(shapes) <= number
    assert list(shapes) == sorted(set(shapes))
    distinct = sorted(set(sizes))
    least = min(
        padding(sizes, (*some, distinct[-1]))
        for some in combinations(distinct[:-1], min(number, len(distinct)) - 1)
    )
    assert padding(sizes, shapes) == least


def test_many_sizes_count_as_fewer() -> None:
    sizes = np.random.default_rng(0).integers(1, 100_000, 5_000).tolist()
    shapes = choose_shapes(sizes, 8)
    assert len(set(sizes)) > MOST_SIZES
    assert len(shapes) == 8
    assert shapes[-1] == max(sizes)
    assert padding(sizes, shapes) < 0.15 * sum(sizes)


@settings(max_examples=53)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=50),
    ranks=st.integers(1, 5),
    room=st.integers(0, 200),
    shapes=st.one_of(st.integers(1, 4), st.lists(st.integers(1, 60), max_size=3)),
    execution=st.sampled_from(EXECUTIONS),
    pad_to=st.sampled_from([1, 4]),
    modes=st.booleans(),
    slow=st.booleans(),
)
def test_every_micro_batch_has_one_of_few_shapes(
    lengths: list[int], ranks: int, room: int, modes: bool, slow: bool, **options: Any
) -> None:
    shapes, pad_to = options["shapes"], options["pad_to"]
    longest = -(-max(lengths) // pad_to) * pad_to
    capacity = longest + room + 4
    if not isinstance(shapes, int):
        shapes = [*(-(-size // pad_to) * pad_to for size in shapes if size <= longest), longest]
    both = [Mode("none", -(-capacity // 2), COST), Mode("full", capacity, Cost(2e-6, 0.07, 20.0))]
    slowdown = [1.5] + [1.0] * (ranks - 1) if slow else None
    options |= {"shapes": shapes, "slowdown": slowdown}
    options |= {"modes": both} if modes else {"capacity": capacity, "cost": COST}
    balanced = balance(lengths, ranks, **options)
    assert sorted(balanced.order()) == list(range(len(lengths)))
    pricing = balanced.pricing
    assert isinstance(pricing, ModePricing)
    sizes = {size for of_rank in balanced.padded_tokens for size in of_rank if size}
    if isinstance(shapes, int):
        assert len(sizes) <= shapes
    else:
        assert sizes <= set(shapes)
    assert max(sizes) <= capacity
    for of_rank, padded, names in zip(
        balanced.micro_batches, balanced.padded_tokens, balanced.recompute, strict=True
    ):
        for micro, size, name in zip(of_rank, padded, names, strict=True):
            assert sum(-(-lengths[i] // pad_to) * pad_to for i in micro) <= size or not micro
            assert size <= next(m.capacity for m in pricing.modes if m.name == name)
        if options["execution"] == "uniform":
            assert padded == sorted(padded, reverse=True)
    if options["execution"] == "lockstep":
        largest = [max(of_step) for of_step in zip(*balanced.padded_tokens, strict=True)]
        assert largest == sorted(largest, reverse=True)
    assert balanced.lower_bound_ms <= balanced.predicted_ms
    assert balance(lengths, ranks, **options) == balanced


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("number", "most"), [(8, 0.005), (4, 0.01)])
@pytest.mark.parametrize("context", [8192, 16384, 32768])
def test_few_shapes_need_little_padding(
    execution: Execution, number: int, most: float, context: int
) -> None:
    lengths = np.random.default_rng(1).choice(CODE[context >= CODE], 1024)
    balanced = balance(lengths, 16, context, COST, execution=execution, shapes=number)
    free = balance(lengths, 16, context, COST, execution=execution)
    padded = sum(map(sum, balanced.padded_tokens))
    rounded = [sum(int(lengths[i]) for i in m) for q in free.micro_batches for m in q]
    assert padded <= (1 + most) * int(lengths.sum())
    assert padded - lengths.sum() < padding(rounded, choose_shapes(rounded, number))
    assert free.predicted_ms <= balanced.predicted_ms
    assert balanced.lower_bound_ms == pytest.approx(free.lower_bound_ms)


@pytest.mark.parametrize("pad_to", [1, 8])
def test_a_shape_as_large_as_a_modes_capacity_is_in_that_mode(pad_to: int) -> None:
    modes = [
        Mode("none", 500, Cost(1e-6, 0.008, 2.0)),
        Mode("full", 1000, Cost(1e-6, 0.010, 3.0)),
    ]
    balanced = balance([240, 200] * 4, 2, modes=modes, shapes=[500, 1000], pad_to=pad_to)
    assert balanced.predicted_ms == pytest.approx(12.1952)
