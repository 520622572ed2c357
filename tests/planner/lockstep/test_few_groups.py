"""Few sequences on groups of all ranks: near the exact optimum, and no slower than a known plan."""

import numpy as np
import pytest
from oracles.micro_steps import least_busy_micro_steps_ms
from step_lengths import CODE

from seqplan import Cost
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.planner.lockstep.filling.rank_groups import plan_groups

CAPACITY = 8_192
RING_MS = (None, 5.0, 25.0)
"""What a micro-batch costs more for each further rank of its group; None: as the profile has it."""


def costs_of(ranks: int, ring_ms: float | None) -> dict[int, Cost]:
    costs = by_degree(ring_costs("llama-7b-a800-80gb", "tp2"), ranks)
    if ring_ms is None:
        return costs
    overhead = costs[1].c
    return {d: Cost(k.a, k.b, overhead + ring_ms * (d - 1)) for d, k in costs.items()}


@pytest.mark.parametrize("ring_ms", RING_MS)
def test_regret_on_exhaustively_solved_cases(ring_ms: float | None) -> None:
    rng = np.random.default_rng(5)
    regrets = []
    for case in range(24):
        ranks, count = int(rng.choice([2, 4, 8])), int(rng.integers(2, 7))
        longest = min(32_768, CAPACITY * ranks)
        drawn = rng.choice(CODE, count) if case % 3 else rng.integers(1_000, 9_000, count)
        lengths = np.minimum(drawn, longest).tolist()
        costs = costs_of(ranks, ring_ms)
        micro_steps = plan_groups(lengths, ranks, CAPACITY, costs)
        optimum = least_busy_micro_steps_ms(lengths, ranks, CAPACITY, costs)
        assert micro_steps.lower_bound_ms <= optimum * (1 + 1e-9)
        regrets.append(micro_steps.predicted_ms / optimum - 1)
    assert min(regrets) >= -1e-9
    assert np.mean(regrets) <= 0.0005
    assert max(regrets) <= 0.005


@pytest.mark.parametrize("ring_ms", RING_MS)
def test_no_slower_than_a_full_micro_step_and_its_leftover(ring_ms: float | None) -> None:
    ranks = 16
    lengths = [*[CAPACITY - 8] * ranks, 128]
    micro_steps = plan_groups(lengths, ranks, CAPACITY, costs_of(ranks, ring_ms))
    alone = costs_of(ranks, ring_ms)
    filled = alone[1].micro_batch_ms([CAPACITY - 8]) + alone[ranks].micro_batch_ms([128])
    assert micro_steps.predicted_ms <= filled * (1 + 1e-9)


def test_no_slower_than_a_known_plan() -> None:
    ranks, costs = 4, costs_of(4, 25.0)
    lengths = [8_620, 5_859, 4_851, 2_631, 2_588, 1_838, 1_042, 894, 690, 655, 402, 350, 256, 74]
    known = [[(2, [0, 4, 6, 7, 9, 11, 12]), (1, [1, 5, 10, 13]), (1, [2, 3, 8])]]
    known_ms = max(
        costs[degree].micro_batch_ms([lengths[i] for i in part]) for degree, part in known[0]
    )
    assert plan_groups(lengths, ranks, CAPACITY, costs).predicted_ms <= known_ms * (1 + 1e-9)
    for draw in range(20):
        lengths = np.minimum(np.random.default_rng(draw).choice(CODE, 100), CAPACITY).tolist()
        # One sequence a rank and micro-step, in any order.
        known = [[(1, [i]) for i in range(r, r + ranks)] for r in range(0, 100, ranks)]
        known_ms = sum(
            max(costs[1].micro_batch_ms([lengths[i]]) for _, (i,) in groups) for groups in known
        )
        micro_steps = plan_groups(lengths, ranks, CAPACITY, costs, known=known)
        assert micro_steps.predicted_ms <= known_ms * (1 + 1e-9)
        assert plan_groups(lengths, ranks, CAPACITY, costs, known=[[(3, [0])]]) == plan_groups(
            lengths, ranks, CAPACITY, costs
        )
