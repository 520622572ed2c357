"""Sizes of micro-batches with which stages idle least, and fills that use them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from instances import batch_of, fleet

from seqplan import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.bubbles import list_bubbles
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.ramps import MOST_SIZES, Ramps
from seqplan.planner.simulation.one_f_one_b import order_micro_batches, simulate_ms

FORWARDS = (1 / 3, 0.25, 0.5)


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("forward", FORWARDS)
def test_stages_idle_as_little_as_is_proven(pp: int, forward: float) -> None:
    """On two stages for no more than any micro-batches must; on more for up to 30 % more."""
    ramps = Ramps.from_forward(pp, forward)
    of_mean, _ = list_bubbles(pp, forward, forward, MOST_SIZES)
    for v in range(1, MOST_SIZES + 1):
        total = ramps.shares[v - 1].sum()
        idle = (ramps.weights[v - 1] - total) / (total / v)
        assert idle >= of_mean[v - 1] * (1 - 1e-9)
        assert idle == pytest.approx(of_mean[v - 1], rel=1e-9 if pp == 2 else 0.3)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("number", [1, 2, 7, MOST_SIZES, MOST_SIZES + 9])
def test_the_order_gives_each_size_its_place(pp: int, number: int) -> None:
    ramps = Ramps.from_forward(pp, 1 / 3)
    sizes, work = ramps.spread(number, 1000.0, np.inf, 0.0)
    costs = [sizes.of(place) for place in range(number)]
    assert costs == sorted(costs, reverse=True)
    assert sum(costs) == pytest.approx(work)
    mixed = np.random.default_rng(number).permutation(costs).tolist()
    order = ramps.order(mixed)
    assert sorted(order) == list(range(number))
    ordered_ms = simulate_ms([mixed[j] for j in order], pp, 1 / 3)
    assert ordered_ms == pytest.approx(1000.0)
    of_three = order_micro_batches(mixed, pp, 1 / 3)
    assert ordered_ms <= simulate_ms([mixed[j] for j in of_three], pp, 1 / 3) * (1 + 1e-9)


@given(st.integers(1, 90), st.floats(0.05, 2), st.floats(0, 0.2), st.sampled_from([2, 3, 4]))
def test_sizes_end_by_the_time_whatever_limits_them(
    number: int, limit: float, overhead: float, pp: int
) -> None:
    """Sizes that end at a limit: the rest of the time makes the others larger."""
    ramps = Ramps.from_forward(pp, 1 / 3)
    sizes, work = ramps.spread(number, 10.0, limit, overhead)
    costs = [sizes.of(place) for place in range(number)]
    assume(min(costs) >= 0)
    assert max(costs) <= limit
    assert work == pytest.approx(sum(max(cost - overhead, 0.0) for cost in costs))
    time_ms = simulate_ms([costs[j] for j in ramps.order(costs)], pp, 1 / 3)
    assert time_ms <= 10.0 * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("pp", [2, 4])
def test_a_fill_ends_by_its_limit(seed: int, pp: int) -> None:
    """Every micro-batch is at most as large as its place allows: so the simulation ends in time."""
    batch = batch_of(seed, 300)
    some = PipelineClass(pp, 3e-6, 0.02, 5.0, batch.longest, 1, 9, 4)
    filler = Filler(fleet((some,)), batch, ramped=True)
    target = 1.5 * single_bound_ms((some,), batch)
    while not isinstance(filling := filler.fill(target), Filling):
        target *= 1.1
    costs_of = FillTables.from_batch(batch).find_costs(some).by_mode[0]
    ramps = Ramps.from_forward(pp, some.forward_fraction)
    for bins, limit_ms in zip(filling.bins[0], filling.pipeline_ms[0], strict=True):
        costs = [costs_of.c + sum(n * costs_of.work[i] for i, n in micro) for micro in bins]
        ordered = [costs[j] for j in ramps.order(costs)] if costs else []
        assert simulate_ms(ordered, pp, some.forward_fraction) <= limit_ms * (1 + 1e-9)
        assert limit_ms <= target * (1 + 1e-9)


@pytest.mark.parametrize("time_ms", [430.0, 510.0])
def test_equal_longest_sequences_share_a_pipeline(time_ms: float) -> None:
    """Although sizes of which one alone holds them leave a little more for work."""
    some = PipelineClass(2, 0.0, 1.0, 0.0, 200, 1, 4, 1)
    batch = Batch.from_lengths([100] * 8 + [3] * 160)
    filling = Filler(fleet((some,)), batch, ramped=True).fill(time_ms)
    assert isinstance(filling, Filling)
    assert [sum(n for micro in bins for i, n in micro if i == 0) for bins in filling.bins[0]] == [
        2
    ] * 4
