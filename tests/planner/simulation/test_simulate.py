"""1F1B schedules worked out by hand, and how the simulation relates to the closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqplan.planner.placement.bubbles import (
    Bubbles,
    least_bubbles,
    list_bubbles,
    longest_path_ms,
)
from seqplan.planner.simulation.one_f_one_b import order_micro_batches, simulate_ms, timeline
from seqplan.plans.one_f_one_b import stage_order

COSTS = st.lists(st.floats(0.1, 50), min_size=1, max_size=10)


def form_s(costs: list[float], pp: int) -> float:
    return sum(costs) + (pp - 1) * max(costs)


def test_two_stages_two_unequal_micro_batches_by_hand() -> None:
    # Forward and backward of 3 and 9, in thirds: F 1, B 2 and F 3, B 6.
    # Stage 0: F0 0–1, F1 1–4, B0 4–6 (B0 of stage 1 ends at 4), B1 13–19.
    # Stage 1: F0 1–2, B0 2–4, F1 4–7, B1 7–13.
    assert simulate_ms([3, 9], 2) == pytest.approx(19)
    ends = {(e.stage, e.phase, e.micro_batch): (e.start_ms, e.end_ms) for e in timeline([3, 9], 2)}
    assert ends == {
        (0, "F", 0): pytest.approx((0, 1)),
        (0, "F", 1): pytest.approx((1, 4)),
        (0, "B", 0): pytest.approx((4, 6)),
        (0, "B", 1): pytest.approx((13, 19)),
        (1, "F", 0): pytest.approx((1, 2)),
        (1, "B", 0): pytest.approx((2, 4)),
        (1, "F", 1): pytest.approx((4, 7)),
        (1, "B", 1): pytest.approx((7, 13)),
    }


def test_the_order_matters() -> None:
    # Stage 0: F0 0–3, F1 3–4, B0 12–18, B1 18–20. Stage 1: F0 3–6, B0 6–12, F1 12–13, B1 13–15.
    assert simulate_ms([9, 3], 2) == pytest.approx(20)


def test_the_least_form_s_is_not_the_least_simulation() -> None:
    together, apart = [3.5, 3.5, 3.5, 3.5], [1.5, 3.5, 3.5, 3.5, 2.5]
    assert (form_s(together, 2), form_s(apart, 2)) == (17.5, 18)
    assert simulate_ms(together, 2) == pytest.approx(17.5)
    assert simulate_ms(apart, 2) == pytest.approx(16.67, abs=0.01)


@settings(max_examples=200)
@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.floats(0.01, 20.0), st.booleans()), min_size=1, max_size=9),
    st.tuples(st.floats(0.0, 0.7), st.floats(0.0, 0.7)),
)
def test_no_order_idles_less_than_bounds_assume(
    pp: int, micro_batches: list[tuple[float, bool]], forward: tuple[float, float]
) -> None:
    costs, longer = zip(*micro_batches, strict=True)
    shares = [forward[k] for k in longer]
    simulated = simulate_ms(costs, pp, shares)
    assert longest_path_ms(costs, pp, shares) <= simulated * (1 + 1e-9)
    of_mean, of_largest = list_bubbles(pp, min(forward), max(forward), 64)
    idle_ms = (simulated - sum(costs)) * (1 + 1e-9) + 1e-9
    assert of_mean[len(costs) - 1] * sum(costs) / len(costs) <= idle_ms
    assert of_largest[len(costs) - 1] * max(costs) <= idle_ms
    assert least_bubbles(pp, max(forward)) <= of_largest[-1] * (1 + 1e-9)


@given(st.integers(1, 8), st.integers(1, 40), st.floats(0.0, 0.6), st.integers(0, 10**6))
def test_estimated_bubbles_are_between_the_least_and_those_of_form_s(
    pp: int, micro_batches: int, forward: float, sequences: int
) -> None:
    """One micro-batch idles for pp − 1 more, and so do any if forward takes no time."""
    bubbles = Bubbles.from_forward(pp, forward, sequences)
    assert least_bubbles(pp, forward) <= bubbles.of(micro_batches) * (1 + 1e-9)
    assert bubbles.of(micro_batches) <= (pp - 1) * (1 + 1e-9)
    assert bubbles.of(1) == pytest.approx(pp - 1)
    assert bubbles.of(micro_batches) <= Bubbles.from_forward(pp, forward, sequences + 1).of(
        micro_batches
    ) * (1 + 1e-9)
    assert Bubbles.from_forward(pp, 0.0, sequences).of(micro_batches) == pytest.approx(pp - 1)


def test_two_stages_idle_as_little_as_bounds_assume() -> None:
    """A third, all, and two thirds: the least that three micro-batches can idle."""
    assert simulate_ms([1, 3, 2], 2) - 6 == pytest.approx(
        3 * list_bubbles(2, 1 / 3, 1 / 3, 64)[1][2]
    )


def test_three_stages_by_hand_with_even_halves() -> None:
    # F and B take 1 and 2, then 2 and 1 for the costs 2 and 4 in halves: F0 = B0 = 1, F1 = B1 = 2.
    # Stage 0: F0 0–1, F1 1–3, B0 5–6, B1 11–13. Stage 1: F0 1–2, F1 3–5, B0 4–… after F1: 5–6.
    # Stage 2: F0 2–3, B0 3–4, F1 5–7, B1 7–9; stage 1: B0 5–6, B1 9–11; stage 0: B0 6–7, B1 11–13.
    assert simulate_ms([2, 4], 3, forward_fraction=0.5) == pytest.approx(13)


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 9])
def test_equal_micro_batches_take_v_plus_pp_minus_1(pp: int, micro_batches: int) -> None:
    assert simulate_ms([6.0] * micro_batches, pp) == pytest.approx(6 * (micro_batches + pp - 1))


@given(COSTS, st.floats(0.05, 0.95))
def test_one_stage_takes_the_sum(costs: list[float], forward: float) -> None:
    assert simulate_ms(costs, 1, forward) == pytest.approx(sum(costs))


@given(COSTS, st.integers(1, 5), st.floats(0.05, 0.95), st.data())
def test_form_s_is_never_below_where_costs_rise_and_then_fall(
    costs: list[float], pp: int, forward: float, data: st.DataObject
) -> None:
    side = data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs)))
    pairs = list(zip(sorted(costs), side, strict=True))
    hill = [cost for cost, up in pairs if up] + [cost for cost, up in pairs[::-1] if not up]
    assert simulate_ms(hill, pp, forward) <= form_s(costs, pp) * (1 + 1e-12)


@settings(max_examples=73)
@given(
    st.lists(st.sampled_from([1.0, 2.0, 10.0]), min_size=1, max_size=10),
    st.integers(1, 5),
    st.floats(0.05, 0.95),
)
def test_form_s_is_never_below_in_the_chosen_order(
    costs: list[float], pp: int, forward: float
) -> None:
    time = simulate_ms([costs[j] for j in order_micro_batches(costs, pp, forward)], pp, forward)
    assert time <= form_s(costs, pp) * (1 + 1e-12)


def test_form_s_can_be_below_where_costs_rise_again() -> None:
    assert simulate_ms([2, 1, 2], 2) == pytest.approx(8)
    assert form_s([2, 1, 2], 2) == 7


@given(COSTS, st.integers(1, 5), st.floats(0.05, 0.95))
def test_no_order_beats_the_largest_micro_batch_and_the_sum(
    costs: list[float], pp: int, forward: float
) -> None:
    time = simulate_ms(costs, pp, forward)
    assert time >= pp * max(costs) * (1 - 1e-12)
    assert time >= sum(costs) * (1 - 1e-12)


@given(COSTS, st.integers(1, 4))
def test_the_timeline_is_a_schedule(costs: list[float], pp: int) -> None:
    events = timeline(costs, pp)
    end_ms = {(e.stage, e.phase, e.micro_batch): e.end_ms for e in events}
    assert len(end_ms) == len(events) == 2 * pp * len(costs)
    for stage in range(pp):
        mine = [e for e in events if e.stage == stage]
        assert [(e.phase, e.micro_batch) for e in mine] == stage_order(pp, stage, len(costs))
        free = 0.0
        for event in mine:
            if event.phase == "F":
                ready = end_ms[stage - 1, "F", event.micro_batch] if stage else 0.0
            elif stage < pp - 1:
                ready = end_ms[stage + 1, "B", event.micro_batch]
            else:
                ready = end_ms[stage, "F", event.micro_batch]
            assert event.start_ms == pytest.approx(max(free, ready), abs=1e-9)
            free = event.end_ms
    assert max(end_ms.values()) == pytest.approx(simulate_ms(costs, pp))


@given(COSTS, st.integers(1, 4))
def test_ordering_never_lengthens(costs: list[float], pp: int) -> None:
    order = order_micro_batches(costs, pp)
    assert sorted(order) == list(range(len(costs)))
    assert simulate_ms([costs[j] for j in order], pp) <= simulate_ms(costs, pp) * (1 + 1e-12)


def test_an_empty_pipeline_takes_no_time() -> None:
    assert simulate_ms([], 3) == 0
    assert timeline([], 3) == []
