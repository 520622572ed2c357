"""Micro-steps of groups: complete, aligned, within memory, no rank idle, near the bound."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.micro_steps import least_micro_steps_ms
from step_lengths import CODE

from seqplan.costs.latency import Latency
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.planner.lockstep.filling.rank_groups import GroupedMicroSteps, plan_groups
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.simulation.one_f_one_b import simulate_ms


def costs_of(
    ranks: int, a: float, b: float, c: float, loss: float = 1.0, least: int = 1
) -> dict[int, Latency]:
    """Costs of the powers of two that divide the ranks, and of all of them."""
    degrees = {ranks, *(2**i for i in range(8) if ranks % 2**i == 0)}
    return {d: Latency(a / d, b / d * (loss if d > 1 else 1.0), c) for d in degrees if d >= least}


def check(
    micro_steps: GroupedMicroSteps,
    lengths: list[int],
    ranks: int,
    capacity: int,
    costs: dict[int, Latency],
    *,
    one_each: bool,
    multiple: int,
) -> None:
    """What holds of every result."""
    placed = [i for groups in micro_steps.micro_steps for group in groups for i in group.positions]
    assert sorted(placed) == list(range(len(lengths)))
    assert len(micro_steps.micro_steps) % multiple == 0
    total = 0.0
    for groups, by_rank in zip(micro_steps.micro_steps, micro_steps.by_rank(), strict=True):
        assert len(by_rank) == ranks
        assert all(by_rank)
        first, times = 0, []
        for group in groups:
            assert group.first == first
            assert group.first % group.degree == 0
            first += group.degree
            part = [lengths[i] for i in group.positions]
            assert (max(part) if one_each else sum(part)) <= capacity * group.degree
            cost = costs[group.degree]
            work = sum(length * (cost.a * length + cost.b) for length in part)
            times.append(work + cost.c * (len(part) if one_each else 1))
        assert first == ranks
        total += max(times)
    assert micro_steps.predicted_ms == pytest.approx(total)
    assert micro_steps.gap >= 0
    assert micro_steps.imbalance >= -1e-12


@settings(max_examples=53)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    ranks=st.sampled_from([1, 2, 4, 6, 8, 12]),
    room=st.integers(0, 100),
    a=st.sampled_from([0.0, 0.02, 0.2]),
    c=st.sampled_from([0.0, 1.0, 12.0]),
    least=st.sampled_from([1, 2]),
    one_each=st.booleans(),
    multiple=st.integers(1, 3),
)
def test_plans_are_sound_for_any_options(
    lengths: list[int],
    ranks: int,
    room: int,
    a: float,
    c: float,
    least: int,
    one_each: bool,
    multiple: int,
) -> None:
    capacity = -(-max(lengths) // ranks) + room
    costs = costs_of(ranks, a, 1.0, c, least=min(least, ranks))
    try:
        micro_steps = plan_groups(
            lengths, ranks, capacity, costs, one_each=one_each, multiple=multiple
        )
    except ValueError as error:
        assume("cannot" in str(error))
        assert len(lengths) < multiple * ranks or len(lengths) % multiple or ranks & (ranks - 1)
        return
    check(micro_steps, lengths, ranks, capacity, costs, one_each=one_each, multiple=multiple)


@settings(max_examples=63)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    ranks=st.sampled_from([2, 4]),
    room=st.integers(0, 30),
    a=st.sampled_from([0.0, 0.02, 0.2]),
    c=st.sampled_from([0.0, 5.0]),
    loss=st.sampled_from([1.0, 1.2]),
    execution=st.sampled_from([{}, {"one_each": True}, *({"stages": n} for n in (2, 3, 4))]),
)
def test_micro_steps_lie_between_the_bound_and_the_optimum(
    lengths: list[int], ranks: int, room: int, a: float, c: float, loss: float, execution: Any
) -> None:
    """Of all ways to group them, also with idle ranks in some groups."""
    capacity = -(-max(lengths) // ranks) + room
    costs = costs_of(ranks, a, 1.0, c, loss)
    micro_steps = plan_groups(lengths, ranks, capacity, costs, **execution)
    classes = [
        PipelineClass(1, cost.a, cost.b, cost.c, capacity * degree, 1, 1, degree)
        for degree, cost in costs.items()
    ]
    best = least_micro_steps_ms(classes, lengths, ranks, **execution)
    assert micro_steps.lower_bound_ms <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= micro_steps.predicted_ms <= 2 * best
    if "stages" in execution:
        slowest = [max(times) for times in micro_steps.micro_steps_ms]
        simulated = simulate_ms(slowest, execution["stages"])
        assert simulated <= micro_steps.predicted_ms * (1 + 1e-9)


def test_the_same_lengths_give_the_same_groups() -> None:
    lengths = np.random.default_rng(0).integers(1, 30_000, 200).tolist()
    costs = costs_of(16, 2e-6, 0.1, 60.0)
    plans = [plan_groups(lengths, 16, 8_192, costs) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0].gap < 0.03


def test_a_long_sequence_gets_ranks_and_the_others_work_next_to_it() -> None:
    micro_steps = plan_groups([32_000, *[4_000] * 8], 16, 8_192, costs_of(16, 2e-6, 0.1, 60.0))
    degrees = {
        i: g.degree for groups in micro_steps.micro_steps for g in groups for i in g.positions
    }
    assert degrees[0] >= 4
    assert len(micro_steps.micro_steps) == 1
    assert micro_steps.imbalance < 0.35


def test_few_sequences_one_by_one_are_near_their_bound() -> None:
    """Ranks that the longest sequence needs to be short are ranks that the others lack."""
    costs = by_degree(ring_costs("llama-7b-a800-80gb", "tp2"), 64)
    lengths = np.minimum(np.random.default_rng(0).choice(CODE, 150), 32768).tolist()
    assert plan_groups(lengths, 64, 8192, costs, one_each=True).gap <= 0.07


def test_impossible_arguments_are_errors() -> None:
    costs = costs_of(4, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="a sequence has 401 tokens; 4 ranks hold 400"):
        plan_groups([401], 4, 100, costs)
    with pytest.raises(ValueError, match="1 sequence cannot fill 2 micro-batches, in mult"):
        plan_groups([10], 4, 100, costs, multiple=2)
    with pytest.raises(ValueError, match="one by one do not go through stages"):
        plan_groups([10], 4, 100, costs, one_each=True, stages=2)


@pytest.mark.parametrize("overhead", [0.0, 100.0])
def test_long_samples_run_before_the_others_if_groups_cost_more(overhead: float) -> None:
    """One by one, a group pays its overhead for each sample; alone, short ones pay none."""
    lengths = [744, 1224, 361, 3999, 941, 1927, 8270, 559, 4571, 3466, 4218]
    costs = {d: Latency(1e-6 / d, 0.01 / d, overhead * (d - 1)) for d in (1, 2, 4)}
    grouped = plan_groups(lengths, 4, 4096, costs, one_each=True)
    parts = [[6], [8], [10], [3], [9], [5], [1, 4, 0, 7, 2]]
    known = [[(4, [6])], [(2, parts[1]), (2, parts[2])], [(1, part) for part in parts[3:]]]
    with_known = plan_groups(lengths, 4, 4096, costs, one_each=True, known=known)
    theirs = sum(
        max(sum(costs[d].micro_batch_ms([lengths[i]]) for i in part) for d, part in groups)
        for groups in known
    )
    assert with_known.predicted_ms <= theirs * (1 + 1e-9)
    assert grouped.predicted_ms <= theirs * 1.05
