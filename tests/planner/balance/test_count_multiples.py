"""Micro-batch counts in multiples: no slower than a short construct, and bounded soundly."""

from bisect import insort
from math import inf

import numpy as np
import pytest
from balance_cases import EXECUTIONS, time_assignments
from hypothesis import given, settings
from hypothesis import strategies as st
from step_lengths import CODE

from seqplan import Cost, balance
from seqplan.planner.balance.balanced import Balanced, Execution


def work_ms(length: int, cost: Cost) -> float:
    return length * (cost.a * length + cost.b)


def construct_lockstep(
    lengths: list[int], ranks: int, capacity: int, cost: Cost, number: int
) -> float:
    """Fill some micro-steps longest first, and run the shortest alone in the others (ms)."""
    ordered, best = sorted(lengths, reverse=True), inf
    for full in range(1, number + 1):
        alone = ranks * (number - full)
        many, few = ordered[: len(ordered) - alone], ordered[len(ordered) - alone :]
        bins = [(0.0, k, 0) for k in range(ranks * full)]  # load, number, tokens; by rising load
        for length in many:
            place = next((i for i, at in enumerate(bins) if at[2] + length <= capacity), None)
            if place is None:
                break
            load, k, tokens = bins.pop(place)
            insort(bins, (load + work_ms(length, cost), k, tokens + length))
        else:
            if all(tokens for _, _, tokens in bins):
                loads = [load for load, _, _ in reversed(bins)]
                slowest = [*loads[::ranks], *(work_ms(length, cost) for length in few[::ranks])]
                best = min(best, sum(slowest) + number * cost.c)
    return best


def construct_free(lengths: list[int], ranks: int, capacity: int, cost: Cost, number: int) -> float:
    """Give each rank the shortest sequences it must have, and the others longest first (ms)."""
    ordered = sorted(lengths, reverse=True)
    alone = ordered[len(ordered) - ranks * (number - 1) :] if number > 1 else []
    loads = [sum(work_ms(length, cost) for length in alone[r::ranks]) for r in range(ranks)]
    tokens = [0] * ranks
    for length in ordered[: len(ordered) - len(alone)]:
        r = min(range(ranks), key=lambda r: loads[r])
        loads[r] += work_ms(length, cost)
        tokens[r] += length
    # One more micro-batch for sequences that are not alone: only if it fits.
    return max(loads) + number * cost.c if max(tokens) <= capacity else inf


@pytest.mark.parametrize("multiple", range(1, 17))
def test_no_slower_than_a_short_construct(multiple: int) -> None:
    rng = np.random.default_rng(multiple)
    compared = 0
    for _ in range(4):
        ranks = int(rng.choice([2, 4, 8, 16]))
        count = min(600, int(rng.integers(multiple, 3 * multiple + 8)) * ranks)
        capacity = int(rng.choice([8_192, 32_768, 131_072]))
        cost = Cost(
            float(rng.choice([0.0, 1e-6, 5e-6])), 0.05, float(rng.choice([0.0, 5.0, 100.0]))
        )
        lengths = np.minimum(rng.choice(CODE, count), capacity).tolist()
        for execution in EXECUTIONS:
            options = {"count_multiple": multiple, "execution": execution}
            balanced = balance(lengths, ranks, capacity, cost, **options)
            construct = construct_lockstep if execution == "lockstep" else construct_free
            naive = min(
                construct(lengths, ranks, capacity, cost, number)
                for number in range(multiple, count // ranks + 1, multiple)
            )
            compared += naive < inf
            assert balanced.predicted_ms <= naive * (1 + 1e-9)
            assert all(micro for of_rank in balanced.micro_batches for micro in of_rank)
    assert compared


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    room=st.integers(8, 40),
    cost=st.builds(Cost, st.sampled_from([0.0, 0.05]), st.just(1.0), st.sampled_from([0.0, 30.0])),
    execution=st.sampled_from(EXECUTIONS),
    multiple=st.integers(2, 3),
)
def test_the_bound_counts_the_multiple(
    lengths: list[int], room: int, cost: Cost, execution: Execution, multiple: int
) -> None:
    capacity = max(lengths) + room
    balanced = balance(lengths, 2, capacity, cost, count_multiple=multiple, execution=execution)
    full = all(micro for of_rank in balanced.micro_batches for micro in of_rank)
    timed = time_assignments(lengths, capacity, cost.micro_batch_ms, execution, multiple)
    least = min((time for time, none_empty in timed if none_empty or not full), default=inf)
    assert balanced.lower_bound_ms <= least * (1 + 1e-9)
    if len(balanced.micro_batches[0]) == multiple and len(lengths) >= 2 * multiple:
        assert full


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_fewer_sequences_than_micro_batches_run_side_by_side(execution: Execution) -> None:
    cost = Cost(0.0, 1.0, 100.0)
    balanced = balance([5, 6, 7], 2, 20, cost, count_multiple=7, execution=execution)
    assert [len(of_rank) for of_rank in balanced.micro_batches] == [7, 7]
    assert balanced.predicted_ms == 111.0  # 5 and 6 together, next to 7
    assert balanced.gap < 0.02


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_ranks_by_the_thousand_without_sequences(execution: Execution) -> None:
    cost, lengths = Cost(1e-6, 0.05, 1.0), [3_000, 2_000, 100]
    balanced = balance(lengths, 50_000, 4_096, cost, execution=execution)
    assert sorted(balanced.order()) == [0, 1, 2]
    assert balanced.gap < 1e-6


@pytest.mark.parametrize("slowdown", [None, [1.0] * 15 + [1.5]])
@pytest.mark.parametrize("multiple", [1, 2, 4])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bundles_fill_all_micro_batches_and_cost_nothing_if_they_are_single_sequences(
    execution: Execution, multiple: int, slowdown: list[float] | None
) -> None:
    lengths = np.minimum(np.random.default_rng(multiple).choice(CODE, 512), 16_384).tolist()
    cost = Cost(4.1e-6, 0.16, 53.0)

    def plan(keys: list[int] | None) -> Balanced:
        return balance(
            lengths,
            16,
            32_768,
            cost,
            keep_together=keys,
            count_multiple=multiple,
            execution=execution,
            slowdown=slowdown,
        )

    alone = plan(list(range(512)))
    assert alone.predicted_ms <= plan(None).predicted_ms * (1 + 1e-9)
    pairs = plan([i // 2 for i in range(512)])
    for balanced in (alone, pairs):
        assert all(micro for of_rank in balanced.micro_batches for micro in of_rank)


@pytest.mark.parametrize("multiple", [2, 4])
def test_equally_many_samples_cost_little_in_lockstep(multiple: int) -> None:
    cost = Cost(4.1e-6, 0.16, 53.0)
    for seed in range(3):
        lengths = np.minimum(np.random.default_rng(seed).choice(CODE, 64), 8_192)
        free = balance(lengths, 8, 8_192, cost, count_multiple=multiple)
        equal = balance(lengths, 8, 8_192, cost, count_multiple=multiple, equal_samples=True)
        assert {sum(map(len, of_rank)) for of_rank in equal.micro_batches} == {8}
        assert all(micro for of_rank in equal.micro_batches for micro in of_rank)
        assert equal.predicted_ms <= free.predicted_ms * 1.08
