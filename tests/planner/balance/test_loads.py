"""Balancing samples that have work in several phases."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from balance_cases import EXECUTIONS
from hypothesis import given
from hypothesis import strategies as st

from seqplan import Balanced, Cost, Phase, balance
from seqplan.planner.balance.balanced import Execution
from seqplan.planner.balance.loads import balance_loads
from seqplan.planner.placement.slowdown import Slowdown

VISION, TEXT = Cost(2e-6, 0.01, 3.0), Cost(1.2e-6, 0.05, 20.0)


def draw_samples(samples: int, seed: int, share: float = 0.5) -> tuple[list[list[int]], list[int]]:
    """Patches of each sample's images, and its tokens: four patches make one."""
    rng = np.random.default_rng(seed)
    numbers = np.where(rng.random(samples) < share, rng.poisson(2.0, samples) + 1, 0)
    patches = [np.clip(rng.lognormal(7, 0.8, n), 64, 8000).astype(int).tolist() for n in numbers]
    tokens = rng.lognormal(6, 1, samples).astype(int) + 1 + np.array([sum(p) // 4 for p in patches])
    return patches, tokens.tolist()


def time_ms(balanced: Balanced, loads: list[Phase], barrier: bool, slowdown: list[float]) -> float:
    """Time the micro-batches of all ranks from the definition."""
    times = []
    for of_rank, factor in zip(balanced.micro_batches, slowdown, strict=True):
        of_micro = []
        for micro in of_rank:
            phases = []
            for load in loads:
                listed: list[int] = []
                for i in micro:
                    entry = load.sequences[i]
                    listed += [entry] if isinstance(entry, int) else list(entry)
                work = sum(n * (load.cost.a * n + load.cost.b) for n in listed)
                phases.append(factor * (work + load.cost.c) if sum(listed) else 0.0)
            of_micro.append(phases if barrier else [sum(phases)])
        times.append(of_micro)
    phases = range(len(loads) if barrier else 1)
    if balanced.execution == "lockstep":
        steps = list(zip(*times, strict=True))
        return sum(max(of_rank[p] for of_rank in step) for step in steps for p in phases)
    return sum(max(sum(micro[p] for micro in of_rank) for of_rank in times) for p in phases)


@pytest.mark.parametrize("seed", range(12))
def test_samples_that_stay_on_their_rank_are_packed_like_all_packings(seed: int) -> None:
    """Every way to pack three samples on each of two ranks into micro-steps, none of them empty."""
    patches, tokens = draw_samples(6, seed)
    loads = [
        Phase("vision", patches, VISION, max(map(sum, patches)) + 6_000),
        Phase("text", tokens, TEXT, max(tokens) + sum(tokens) // 4),
    ]
    fixed = balance_loads(
        loads,
        Slowdown.from_value(None, 2),
        barrier=True,
        execution="lockstep",
        count_multiple=1,
        rank_of=np.repeat([0, 1], 3),
    )
    assert [sorted(i for micro in of for i in micro) for of in fixed.micro_batches] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert all(micro for of_rank in fixed.micro_batches for micro in of_rank)
    assert len({len(of_rank) for of_rank in fixed.micro_batches}) == 1
    best = np.inf
    for number in (1, 2, 3):
        for steps in product(range(number), repeat=6):
            parts = [
                [[i for i in range(3 * r, 3 * r + 3) if steps[i] == k] for k in range(number)]
                for r in range(2)
            ]
            micros = [micro for of_rank in parts for micro in of_rank]
            if all(
                micro and all(load.tokens[micro].sum() <= (load.capacity or 0) for load in loads)
                for micro in micros
            ):
                best = min(best, time_ms(replace(fixed, micro_batches=parts), loads, True, [1, 1]))
    assert fixed.lower_bound_ms <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= fixed.predicted_ms <= 1.02 * best


@given(
    samples=st.lists(
        st.tuples(st.lists(st.integers(0, 40), max_size=3), st.integers(1, 50)),
        min_size=1,
        max_size=30,
    ),
    slowdown=st.lists(st.sampled_from([1.0, 1.0, 1.5]), min_size=1, max_size=5),
    room=st.integers(0, 100),
    barrier=st.booleans(),
    execution=st.sampled_from(EXECUTIONS),
    count_multiple=st.integers(1, 2),
)
def test_every_sample_once_within_the_capacity_of_each_phase(
    samples: list[tuple[list[int], int]], room: int, **options: Any
) -> None:
    slowdown, barrier = options["slowdown"], options["barrier"]
    patches, tokens = [p for p, _ in samples], [t for _, t in samples]
    loads = [
        Phase("vision", patches, Cost(1e-3, 0.1, 1.0), max(1, *map(sum, patches)) + room),
        Phase("text", tokens, Cost(2e-3, 0.3, 2.0), max(tokens) + room),
    ]
    balanced = balance(ranks=len(slowdown), loads=loads, **options)
    assert sorted(balanced.order()) == list(range(len(samples)))
    for of_rank in balanced.micro_batches:
        assert len(of_rank) % options["count_multiple"] == 0
        for micro in of_rank:
            assert sum(sum(patches[i]) for i in micro) <= loads[0].capacity
            assert sum(tokens[i] for i in micro) <= loads[1].capacity
    assert balanced.predicted_ms == pytest.approx(time_ms(balanced, loads, barrier, slowdown))
    assert balanced.lower_bound_ms <= balanced.predicted_ms
    assert sum(balanced.phase_ms.values()) == pytest.approx(balanced.predicted_ms)
    again = balance(ranks=len(slowdown), loads=loads, **options)
    assert again.micro_batches == balanced.micro_batches


@given(
    samples=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=8),
    slowdown=st.sampled_from([[1.0, 1.0, 1.0], [1.0, 1.0, 1.5]]),
    barrier=st.booleans(),
    execution=st.sampled_from(EXECUTIONS),
)
def test_near_the_best_of_all_assignments_of_few_samples(
    samples: list[tuple[int, int]], slowdown: list[float], barrier: bool, execution: Execution
) -> None:
    loads = [
        Phase("vision", [v for v, _ in samples], Cost(0.02, 0.3, 0.5)),
        Phase("text", [t for _, t in samples], Cost(0.01, 0.5, 1.0)),
    ]
    balanced = balance(
        ranks=3, loads=loads, barrier=barrier, execution=execution, slowdown=slowdown
    )
    owners = np.array(list(product(range(3), repeat=len(samples))))
    phases = []
    for load in loads:
        of_rank = np.stack([(owners == rank) @ load.work_ms for rank in range(3)], axis=1)
        phases.append(np.array(slowdown) * np.where(of_rank > 0, of_rank + load.cost.c, 0.0))
    if barrier:
        optimum = float(sum(phase.max(axis=1) for phase in phases).min())
    else:
        optimum = float(sum(phases).max(axis=1).min())
    assert balanced.lower_bound_ms <= optimum * (1 + 1e-9)
    assert optimum * (1 - 1e-9) <= balanced.predicted_ms <= optimum * 1.25


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_vectors_are_balanced_where_one_number_is_not(share: float) -> None:
    patches, tokens = draw_samples(1024, seed=0, share=share)
    loads = [Phase("vision", patches, VISION), Phase("text", tokens, TEXT)]
    by_vector = balance(ranks=32, loads=loads)
    unaware = balance(tokens, 32, sum(tokens), TEXT)
    as_balanced = Balanced(
        unaware.micro_batches,
        by_vector.lengths,
        by_vector.pricing,
        "lockstep",
        0.0,
        0.0,
        by_vector.slowdown,
    )
    assert by_vector.gap < 0.05
    assert time_ms(as_balanced, loads, True, [1.0] * 32) > 1.02 * by_vector.predicted_ms
    assert set(by_vector.phase_ms) == {"vision", "text"}
    assert balance(ranks=32, loads=loads, barrier=False).gap < 0.02


@pytest.mark.parametrize("seed", range(40))
def test_no_micro_batch_is_empty_if_samples_suffice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    patches, text = draw_samples(int(rng.integers(16, 41)), seed)
    loads = [Phase("vision", patches, VISION, 20_480), Phase("text", text, TEXT, 12_288)]
    balanced = balance(ranks=4, loads=loads)
    micro_batches = [micro for of_rank in balanced.micro_batches for micro in of_rank]
    assert all(micro_batches) or len(text) < len(micro_batches)
    assert all(any(of_step) for of_step in zip(*balanced.micro_batches, strict=True))


def test_samples_of_least_work_fill_empty_micro_batches() -> None:
    """A sample of few tokens may have the largest image; the order of phases does not matter."""
    images = [10_248, 1_217, 0, 0, 1_449, 0, 9_429, 1_039, 0, 710, 3_362, 0, 0, 8_462, 0, 0, 0, 0]
    tokens = [165, 678, 1534, 77, 2325, 2357, 540, 79, 306, 260, 431, 193, 115, 872, 267, 783]
    tokens += [2170, 164]
    vision = Phase("vision", images, Cost(2e-6, 0.01, 3.0), 32_768)
    text = Phase("text", tokens, Cost(1e-6, 0.03, 5.0), 8_192)
    times = []
    for loads in ([vision, text], [text, vision]):
        balanced = balance(ranks=8, loads=loads, count_multiple=2)
        assert all(micro for of_rank in balanced.micro_batches for micro in of_rank)
        times.append(balanced.predicted_ms)
    assert times[0] == pytest.approx(times[1])
    assert balanced.gap < 0.1  # 0.73 if the fewest tokens of the last phase decide
