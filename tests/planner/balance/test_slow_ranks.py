"""Factors of slow ranks from measured times."""

import numpy as np
import pytest
from step_lengths import draw

from seqplan import Cost, Planner, SlowRanks, balance

NOISE = 0.05


def run(
    true: list[float], steps: int, seed: int, planned: bool = True
) -> tuple[SlowRanks, list[tuple[float | None, ...]]]:
    """Observe steps of drawn work, planned with the factors found so far."""
    rng = np.random.default_rng(seed)
    ranks, found = SlowRanks(len(true)), []
    for _ in range(steps):
        work = rng.uniform(50, 150, len(true))
        factors = [f or 1.0 for f in ranks.slowdown] if planned else [1.0] * len(true)
        predicted = (work * factors).tolist()
        noise = rng.normal(1, NOISE, len(true)).clip(0.5)
        found.append(ranks.observe(predicted, (1.1 * work * true * noise).tolist()))
    return ranks, found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_slow_rank_is_found_within_64_steps(factor: float, seed: int) -> None:
    true = [1.0] * 16
    true[5] = factor
    _, found = run(true, 64, seed)
    assert found[62] == (1.0,) * 16
    assert found[63][5] == pytest.approx(factor, rel=0.03)
    assert [f for rank, f in enumerate(found[63]) if rank != 5] == [1.0] * 15


@pytest.mark.parametrize("true", [[1.0, 1.4], [1.0, 1.4] * 4, [1.0, 1.19, 1.1, 1.0], [1.0, 3.0]])
def test_half_of_all_ranks_may_be_slow(true: list[float]) -> None:
    """As with two groups of which one has a slow rank."""
    _, found = run(true, 64, seed=1)
    assert found[63] == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize("ranks", [2, 8])
def test_there_is_no_false_alarm_in_10_000_steps(ranks: int) -> None:
    _, found = run([1.0] * ranks, 10_000, seed=0)
    assert set(found) == {(1.0,) * ranks}


def test_a_rank_that_is_fast_again_is_found() -> None:
    rng = np.random.default_rng(0)
    ranks = SlowRanks(4)
    for true in ([1.0, 1.5, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]):
        for _ in range(96):
            work = rng.uniform(50, 150, 4)
            predicted = work * np.array([f or 1.0 for f in ranks.slowdown])
            ranks.observe(predicted.tolist(), (work * true * rng.normal(1, NOISE, 4)).tolist())
        assert ranks.slowdown == pytest.approx(true, rel=0.03)


def test_a_rank_without_work_keeps_its_factor() -> None:
    """It got none as it is slow: at the usual speed it would get too much, again and again."""
    ranks = SlowRanks(4, [(2, 100.0)])
    for _ in range(128):
        ranks.observe([10.0, 10.0, 0.0, 10.0], [10.0, 10.0, 0.0, 10.0])
    assert ranks.slowdown == (1.0, 1.0, 100.0, 1.0)


def test_a_lost_rank_has_no_factor_and_work_goes_to_others() -> None:
    ranks = SlowRanks(3)
    assert ranks.observe([10.0, 10.0, 10.0], [10.0, None, 10.0]) == (1.0, None, 1.0)
    balanced = balance([5, 6, 7], 3, 20, Cost(0.0, 1.0, 0.0), slowdown=ranks.slowdown)
    assert balanced.micro_batches[1] == []
    assert ranks.observe(balanced.rank_ms, [9.0, 0.0, 9.0]) == (1.0, 1.0, 1.0)


def test_times_with_waits_are_named_and_change_nothing() -> None:
    rng = np.random.default_rng(0)
    ranks = SlowRanks(4)
    for _ in range(64):
        work = rng.uniform(50, 150, 4)
        ranks.observe(work.tolist(), [float(work.max())] * 4)
    assert ranks.waits_included
    assert ranks.slowdown == (1.0,) * 4


@pytest.mark.parametrize(
    ("slow", "message"), [((9, 1.3), "slow: rank 9: ranks are 0 to 3"), ((1, 0.5), "rank 1: 0.5")]
)
def test_known_slow_ranks_are_checked(slow: tuple[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlowRanks(4, [slow])


def test_a_very_slow_rank_has_a_factor_that_plans_take() -> None:
    ranks = SlowRanks(4)
    for _ in range(64):
        found = ranks.observe([1.0] * 4, [1.0, 1.0, 2500.0, 1.0])
    assert found == (1.0, 1.0, 1000.0, 1.0)
    assert SlowRanks(4, [(2, found[2])]).slowdown == found


def test_slow_stages_are_found_from_times_with_waits() -> None:
    """Pipelines of few micro-batches wait for longer, in part, than those of many."""
    planner = Planner.from_profile("llama-7b-a800-80gb", 16, 16_384, layout="tp2.pp4", prove=False)
    for seed in range(64):
        plan = planner.plan(draw(40_000, seed, longest=12_000))
        measured = np.zeros(16)
        for pipeline in plan.pipelines:
            slow = 1.4 if 6 in pipeline.ranks else 1.0
            measured[list(pipeline.ranks)] = slow * pipeline.predicted_ms
        found = planner.observe(plan, measured.tolist())
    assert found == (1.4,) * 8 + (1.0,) * 8
