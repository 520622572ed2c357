"""Exchanges of sequences between micro-batches: the compiled ones are those of Python."""

from typing import Any

import numpy as np
import pytest
from instances import Case, add_modes, assert_sound, batch_of, fleet, random_case_with_modes
from native_extension import compiled, measure_growth

from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement import exchange
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import (
    Filler,
    Filling,
    PackedPlacement,
    fill_kernel,
)
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassMode, PipelineClass
from seqplan.planner.placement.ordered_times import put_in_order


def long_case(seed: int) -> Case:
    """Long-tailed lengths on classes with stages, of which some have modes."""
    rng = np.random.default_rng(seed)
    batch = batch_of(seed, int(rng.integers(20, 150)))
    classes = []
    for k in range(int(rng.integers(1, 4))):
        capacity = int(batch.longest * (1 + rng.random() if k == 0 else 0.5 + rng.random()))
        classes.append(
            PipelineClass(
                pp=int(rng.choice([1, 2, 4])) if k else 4,
                a=float(rng.choice([0.0, 1e-6])),
                b=0.01,
                c=float(rng.choice([0.0, 2.0, 20.0])),
                capacity=capacity,
                unit=int(rng.choice([1, 8])),
                count=int(rng.integers(1, 5)),
                gpus=4,
            )
        )
    return tuple(add_modes(k, rng) if rng.random() < 0.5 else k for k in classes), batch


def placed_by_fill(case: Case) -> Filling | None:
    """Place the sequences in the first step of planning."""
    classes, batch = case
    return dispatch(Filler(fleet(classes), batch), single_bound_ms(classes, batch))


def list_costs(case: Case) -> list[ClassCosts]:
    classes, batch = case
    return [FillTables.from_batch(batch).find_costs(k) for k in classes]


def exchange_both(case: Case, filling: Filling, lower_ms: float) -> tuple[Any, Any]:
    """Exchange in both ways: placements, or None."""
    costs = list_costs(case)
    ours = exchange._exchange_compiled(costs, filling, lower_ms)
    return ours, exchange._exchange_in_python(costs, filling, lower_ms)


@compiled
def test_compiled_exchanges_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("", "STAGED_"):
        monkeypatch.setattr(exchange, f"{kind}DRAWN", 3000)
        monkeypatch.setattr(exchange, f"{kind}FRUITLESS", 700)
    made = shorter = 0
    cases = [long_case(seed) for seed in range(40)]
    cases += [random_case_with_modes(np.random.default_rng(seed)) for seed in range(80)]
    for case in cases:
        filling = placed_by_fill(case)
        if filling is None:
            continue
        ours, reference = exchange_both(case, filling, filling.objective_ms * 0.97)
        assert ours == reference
        made += ours is not None
        exchanged = exchange_sequences(fleet(case[0]), case[1], filling, 0.0)
        assert_sound(fleet(case[0]), case[1], exchanged, in_order=True)
        ordered = put_in_order(list_costs(case), filling)
        assert exchanged.objective_ms <= ordered.objective_ms * (1 + 1e-9)
        assert [PackedPlacement.pack(bins) for bins in filling.bins] == [*filling.placements]
        shorter += exchanged.objective_ms < ordered.objective_ms
    assert made >= 40
    assert shorter >= 12


@pytest.mark.parametrize("seed", [0, 6])
def test_one_sequence_less_leaves_a_faster_mode(seed: int) -> None:
    """Six pipelines of one stage: tokens just fit the mode without recomputation."""
    batch = batch_of(seed, 60)
    capacity = int(batch.tokens / 6 * 1.02)
    modes = (
        ClassMode(5e-7, 0.0173, 149.0, capacity, "none"),
        ClassMode(5.2e-7, 0.022, 195.0, 4 * capacity, "mlp"),
    )
    last = modes[-1]
    pipelines = PipelineClass(1, last.a, last.b, last.c, last.capacity, 1, 6, 8, modes)
    filling = placed_by_fill(((pipelines,), batch))
    exchanged = exchange_sequences(fleet((pipelines,)), batch, filling, 0.0)
    assert_sound(fleet((pipelines,)), batch, exchanged)
    assert exchanged.objective_ms < 0.97 * filling.objective_ms


@compiled
def test_bad_arguments_are_rejected() -> None:
    classes, batch = long_case(3)
    filling = placed_by_fill((classes, batch))
    assert filling is not None
    costs = [FillTables.from_batch(batch).find_costs(k).compiled for k in classes]
    shares = [tuple(mode.forward_fraction for mode in k.all_modes) for k in classes]
    good = []
    for of_class, placement, of_modes in zip(costs, filling.placements, shares, strict=True):
        assert isinstance(placement, PackedPlacement)
        good.append((of_class, placement.packed, placement.count, of_modes))
    numbers = (0.0, 10, 10, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0)
    assert fill_kernel.exchange(tuple(good), 1e18, *numbers[1:]) is None
    packed = good[0][1]
    few = FillTables(np.array([3])).find_costs(classes[0]).compiled
    empty = np.array([1, 0] + [0] * 20).tobytes()
    for wrong, message in [
        ((object(), *good[0][1:]), "Capsule"),
        ((costs[0], packed[:-8], *good[0][2:]), "packed"),
        ((costs[0], packed, 10**6, shares[0]), "packed"),
        ((costs[0], packed, -1, shares[0]), "packed"),
        ((few, packed, *good[0][2:]), "lengths"),
        ((costs[0], empty, 1, shares[0]), "empty"),
        ((*good[0][:3], ()), "of each mode"),
    ]:
        with pytest.raises(ValueError, match=message):
            fill_kernel.exchange((wrong,), *numbers)
    with pytest.raises(ValueError, match="no pipelines"):
        fill_kernel.exchange((), *numbers)


@compiled
def test_they_keep_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STAGED_DRAWN", 300)
    case = long_case(3)
    filling = placed_by_fill(case)
    assert filling is not None
    costs = [FillTables.from_batch(case[1]).find_costs(k) for k in case[0]]
    grown = measure_growth(lambda: exchange._exchange_compiled(costs, filling, 0.0), 100)
    assert grown < 20_000
