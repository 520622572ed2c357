"""The compiled fill: the same bits as the reference in Python, and only its build is used."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from instances import Case, batch_of, batches, fleet, pipeline_classes, random_case_with_modes
from native_extension import compiled, compute_both, measure_growth

from seqplan import Batch, Profile, StepPlanner, Workload, make_proposal, to_json
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement import fill as kernel
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import level_pipelines
from seqplan.planner.placement.fill import (
    Filler,
    Filling,
    FillStarter,
    NativeFill,
    Shortfall,
    fill_kernel,
)
from seqplan.planner.placement.fill_tables import NO_RAMPS, ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassMode, PipelineClass
from seqplan.planner.placement.greedy import PythonFill
from seqplan.planner.placement.micro_batch_sizes import MOST_COUNTED, MOST_EQUAL

LIGHT, HEAVY = ClassMode(0.0, 1.0, 2.0, 8, "none"), ClassMode(0.0, 1.4, 2.0, 40, "full")
MODES = PipelineClass(1, HEAVY.a, HEAVY.b, HEAVY.c, HEAVY.capacity, 1, 1, 1, (LIGHT, HEAVY))


def bits(outcome: Filling | Shortfall) -> object:
    """The whole result of a fill, with every bit of its floats."""
    if isinstance(outcome, Shortfall):
        return outcome.gpu_ms.hex()
    assert all(type(micro) is list for c in outcome.bins for p in c for micro in p)
    return outcome.bins, [[time.hex() for time in times] for times in outcome.pipeline_ms]


def outcome(case: Case, target: float, ramped: bool = False) -> Filling | Shortfall:
    classes, batch = case
    filler = Filler(fleet(classes), batch, ramped=ramped)
    return filler.fill(target)


@st.composite
def fleets(draw: st.DrawFn) -> Case:
    """One to five classes of up to six pipelines, up to some 200 sequences."""
    batch = draw(batches(most=draw(st.sampled_from([8, 60]))))
    if draw(st.booleans()):
        batch = batch_of(draw(st.integers(0, 99)), draw(st.integers(2, 200)))
    scale = batch.longest
    classes = []
    for k in range(draw(st.integers(1, 5))):
        pipeline = draw(pipeline_classes(batch, holds_longest=k == 0))
        # Coefficients without short binary forms, so that sums round; works near those of c.
        a = pipeline.a * draw(st.floats(0.5, 1.5)) * 24 / scale
        b = pipeline.b * draw(st.floats(0.5, 1.5))
        c = pipeline.c * draw(st.floats(0.5, 1.5)) * scale / 24
        classes.append(replace(pipeline, a=a, b=b, c=c, count=draw(st.integers(1, 6))))
    return tuple(draw(st.permutations(classes))), batch


@compiled
@settings(max_examples=73)
@given(fleets(), st.floats(0.2, 6), st.booleans())
def test_a_fill_has_the_same_bits(case: Case, factor: float, ramped: bool) -> None:
    target = single_bound_ms(*case) * factor
    ours, reference = compute_both(partial(outcome, case, target, ramped))
    assert bits(ours) == bits(reference)


@compiled
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_fills_with_modes_have_the_same_bits(first: int) -> None:
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        classes, batch = random_case_with_modes(rng)
        if seed % 3 == 0:  # many sequences, some of them equal
            more = rng.integers(1, batch.longest + 1, 60)
            batch = Batch.from_lengths([*np.repeat(batch.distinct, 5).tolist(), *more.tolist()])
        tables = FillTables(batch.distinct)
        in_python, in_c = PythonFill(tables, batch.multiplicity), NativeFill(batch.multiplicity)
        target = float(rng.uniform(1, 3000))
        for k in classes:
            limits = min(k.capacity, batch.longest), int(rng.integers(0, batch.longest))
            opened = [
                fill.fill_class(
                    tables.find_costs(k, ramped=seed % 4 > 1),
                    k.count,
                    *limits,
                    target,
                    most=1 if seed % 5 == 0 else 1000,
                )
                for fill in (in_python, in_c)
            ]
            assert opened[0] == opened[1]
        placed = [(placement.unpack(), times) for placement, times in in_c.placements()]
        assert placed == in_python.placements(), seed
        assert in_c.counts.tolist() == in_python.counts


@compiled
@pytest.mark.parametrize("together", range(5))
def test_fills_of_about_equal_lengths_have_the_same_bits(together: int) -> None:
    shared = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        (classes, batch), length = random_case_with_modes(rng), int(rng.integers(1, 60))
        equal = rng.integers(length, length * 9 // 8 + 1, int(rng.integers(1, 90)))
        batch = Batch.from_lengths([*equal.tolist(), *([1] * (seed % 2))])
        tables = FillTables.from_batch(batch)
        in_python, in_c = PythonFill(tables, batch.multiplicity), NativeFill(batch.multiplicity)
        target = float(rng.uniform(1, 3000))
        for k in classes:
            costs = tables.find_costs(k, together=together)
            for fill in (in_python, in_c):
                fill.fill_class(costs, k.count, min(k.capacity, batch.longest), 0, target)
        placed = [(placement.unpack(), times) for placement, times in in_c.placements()]
        assert placed == in_python.placements(), seed
        micro_batches = [bin_ for pipelines, _ in placed for bins in pipelines for bin_ in bins]
        shared += sum(sum(n for _, n in bin_) == together for bin_ in micro_batches)
    assert shared > 30 or together == 0


@compiled
@pytest.mark.parametrize("of_modes", [False, True])
def test_spent_lengths_are_skipped_in_both(of_modes: bool) -> None:
    """A length without sequences opens no pipeline, and is in no micro-batch."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        classes, batch = random_case_with_modes(rng)
        counts = batch.multiplicity.copy()
        counts[: int(rng.integers(0, len(counts)))] = 0
        tables = FillTables(batch.distinct)
        in_python, in_c = PythonFill(tables, counts), NativeFill(counts)
        target = float(rng.uniform(1, 3000))
        for k in [k for each in classes for k in ([each] if of_modes else each.by_mode)]:
            for fill in (in_python, in_c):
                fill.fill_class(
                    tables.find_costs(k), k.count, min(k.capacity, batch.longest), 0, target
                )
        placed = [(placement.unpack(), times) for placement, times in in_c.placements()]
        assert placed == in_python.placements(), seed


def arrays_of(costs: ClassCosts) -> list[Any]:
    return [
        costs.lengths,
        costs.padded_lengths,
        costs.work_ms,
        costs.preference,
        costs.cheap_from,
        costs.held_from,
        costs.coefficients,
        costs.capacities,
    ]


BUBBLES = (0.0, 0.0, 0.0, 0, 0, NO_RAMPS, NO_RAMPS)
"""Those of one stage."""


@compiled
def test_costs_that_do_not_fit_are_rejected() -> None:
    arrays = arrays_of(ClassCosts(Batch.from_lengths([9, 5, 5, 1]).distinct, MODES))
    make_costs = fill_kernel.make_costs
    assert make_costs(*arrays, 1, *BUBBLES)
    for place, array in enumerate(arrays):
        short = array.ravel()[:-1].copy()
        with pytest.raises(ValueError, match="arrays must be of 1 to 8 modes"):
            make_costs(*arrays[:place], short, *arrays[place + 1 :], 1, *BUBBLES)
    for place, value, why in (
        (0, 0, "lengths must descend"),
        (0, 2**53, "lengths must descend"),
        (1, 0, "padded lengths"),
        (3, 2, "and modes"),
        (4, 4, "skips"),
        (5, -1, "skips"),
        (6, -1.0, "finite"),
        (6, float("nan"), "finite"),
        (7, -1, "capacities"),
        (7, 2**53, "capacities"),
    ):
        wrong = [array.copy() for array in arrays]
        wrong[place].ravel()[0] = value
        with pytest.raises(ValueError, match=why):
            make_costs(*wrong, 1, *BUBBLES)
    with pytest.raises(ValueError, match="pp must be"):
        make_costs(*arrays, 0, *BUBBLES)
    for bubbles in ((-1.0, 0.0, 0.0), (0.0, float("nan"), 0.0), (0.0, 0.0, float("inf"))):
        with pytest.raises(ValueError, match="bubbles must be finite"):
            make_costs(*arrays, 1, *bubbles, *BUBBLES[3:])
    for together in (-1, MOST_EQUAL + 1):
        with pytest.raises(ValueError, match="together must be 0 to 16"):
            make_costs(*arrays, 1, *BUBBLES[:4], together, *BUBBLES[5:])
    for shares, weights, why in (
        ([1.0, 0.5], [1.5], "sizes must be of one number"),
        ([1.0], [0.0], "weights of sizes"),
        ([1.0], [float("inf")], "weights of sizes"),
        ([1.1], [1.5], "shares of the largest"),
        ([float("nan")], [1.5], "shares of the largest"),
    ):
        with pytest.raises(ValueError, match=why):
            make_costs(*arrays, 2, *BUBBLES[:5], np.array(shares), np.array(weights))


@compiled
@settings(max_examples=27)
@given(fleets())
def test_a_search_ends_at_the_same_bits(case: Case) -> None:
    """Many fills at the targets that really occur, then exchanges."""
    classes, batch = case

    def search() -> object:
        filler = Filler(fleet(classes), batch)
        filling = dispatch(filler, single_bound_ms(classes, batch))
        return bits(filling), bits(level_pipelines(filler.fleet, batch, filling))

    ours, reference = compute_both(search)
    assert ours == reference


@compiled
@settings(max_examples=45)
@given(fleets(), st.floats(0.5, 3))
def test_a_fill_that_just_fits_has_the_same_bits(case: Case, factor: float) -> None:
    """At targets that a placement meets to the last bits, where any other rounding decides."""
    first = outcome(case, single_bound_ms(*case) * factor)
    assume(isinstance(first, Filling))
    assert isinstance(first, Filling)
    tight = max(time for times in first.pipeline_ms for time in times) / (1 + 1e-12)
    for ulps in range(-6, 7):
        target = tight + ulps * math.ulp(tight)
        ours, reference = compute_both(partial(outcome, case, target))
        assert bits(ours) == bits(reference)


@compiled
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_without_overhead_micro_batches_are_counted_to_a_limit(pp: int) -> None:
    """Many more fit, and are made: their number is no limit on what a pipeline takes."""
    some = PipelineClass(pp=pp, a=0.0, b=1e-7, c=0.0, capacity=1, unit=1, count=1, gpus=1)
    case = (some,), Batch.from_lengths([1] * (3 * MOST_COUNTED))
    target = 1e-7 * (3 * MOST_COUNTED + pp - 1)
    ours, reference = compute_both(partial(outcome, case, 1.2 * target, True))
    assert bits(ours) == bits(reference)
    ours, reference = compute_both(partial(outcome, case, target * (1 + 1e-9)))
    assert bits(ours) == bits(reference)
    assert isinstance(ours, Filling)
    assert len(ours.bins[0][0]) == 3 * MOST_COUNTED
    # One long sequence next to them, and a target that would allow for more than floats count.
    case = (replace(some, capacity=50),), Batch.from_lengths([50] + [1] * 2000)
    ours, reference = compute_both(partial(outcome, case, 1e12))
    assert bits(ours) == bits(reference)
    assert isinstance(ours, Filling)


@compiled
def test_equal_lengths_are_subtracted_at_once() -> None:
    """As n·cost: a thousand subtractions leave other bits, and other room for the last one."""
    some = PipelineClass(pp=1, a=1e-5, b=0.1, c=0.3, capacity=9999, unit=1, count=1, gpus=1)
    case = (some,), Batch.from_lengths([7] * 1000 + [3])
    tight = case[1].tokens * 0.1 + (1000 * 49 + 9) * 1e-5 + 0.3
    for ulps in range(-60, 61):
        target = tight / (1 + 1e-12) + ulps * math.ulp(tight)
        ours, reference = compute_both(partial(outcome, case, target))
        assert bits(ours) == bits(reference)


@compiled
@pytest.mark.parametrize("ramped", [False, True])
@pytest.mark.parametrize(("pp", "unit"), [(1, 1), (2, 4), (4, 8)])
def test_a_large_fill_has_the_same_bits(pp: int, unit: int, ramped: bool) -> None:
    """Thousands of sequences on hundreds of pipelines: every array of the kernel has to grow."""
    some = PipelineClass(
        pp=pp, a=3.1e-6, b=0.0173, c=7.7, capacity=65536, unit=unit, count=70, gpus=4
    )
    classes = (some, replace(some, a=5.3e-6, b=0.0311, capacity=9000 // unit * unit, count=150))
    batch = batch_of(5, 8000)
    for factor in (0.5, 0.9, 1.0, 1.1, 1.5, 4.0):
        target = factor * pp * single_bound_ms(classes, batch)
        ours, reference = compute_both(partial(outcome, (classes, batch), target, ramped))
        assert bits(ours) == bits(reference)


@compiled
def test_a_proposal_and_its_steps_are_the_same_bytes() -> None:
    whole = load_shipped("llama-7b-a800-80gb").document
    schemes = [
        raw
        for raw in whole["schemes"]
        if (raw.get("tp"), raw.get("pp", 1)) in ((2, 1), (2, 2), (4, 1))
        and raw.get("ring", 1) == raw.get("ulysses", 1) == 1
    ]
    profile = Profile.from_document({**whole, "schemes": schemes}, "part")
    lengths = np.minimum(batch_of(0, 1200).distinct, 16384)

    def planned() -> list[str]:
        proposal = make_proposal(profile, Workload(4, 16384, 20_000), lengths)
        planner = StepPlanner(proposal)
        drawn = [np.random.default_rng(seed).choice(lengths, 60) for seed in range(2)]
        plans = [planner.plan(Batch.from_lengths(batch.tolist())) for batch in drawn]
        return [repr(proposal), *(to_json(plan) for plan in plans)]

    ours, reference = compute_both(planned)
    assert ours == reference


@compiled
def test_unsupported_inputs_are_rejected() -> None:
    fill_class, unpack = fill_kernel.fill_class, fill_kernel.unpack
    some = PipelineClass(pp=1, a=0.1, b=1.0, c=0.0, capacity=10, unit=1, count=2, gpus=1)
    costs = ClassCosts(np.array([5, 3]), some).compiled
    counts = np.array([1, 2])
    numbers: tuple[Any, ...] = (2, 10, 0, 9.0, 1000)
    packed, times, left, opened = fill_class(costs, counts, *numbers)
    assert (len(times), left) == (2, counts.sum())
    assert opened == sum(time > 0 for time in times)
    assert unpack(packed, 2)[0]
    for wrong in (np.array([1]), np.array([-1, 2])):
        with pytest.raises(ValueError, match="counts"):
            fill_class(costs, wrong, *numbers)
    for place, value in [(0, -1), (3, float("inf")), (3, float("nan")), (4, 0)]:
        bad = [*numbers]
        bad[place] = value
        with pytest.raises(ValueError, match="must be in range"):
            fill_class(costs, counts, *bad)
    with pytest.raises(ValueError, match="Capsule"):
        fill_class(object(), counts, *numbers)
    with pytest.raises(MemoryError):
        fill_class(costs, counts, 2**62, *numbers[1:])
    for cut in range(0, len(packed), 8):
        with pytest.raises(ValueError, match="packed"):
            unpack(packed[:cut], 2)


@compiled
def test_it_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Python's objects nor its arrays, whether fills succeed, fail or are rejected."""
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    some = PipelineClass(pp=2, a=1e-6, b=0.01, c=1.0, capacity=40000, unit=4, count=9, gpus=1)
    batch = batch_of(1, 300)
    filler = Filler(fleet((some,)), batch)
    target = single_bound_ms((some,), batch)
    ascending = arrays_of(ClassCosts(batch.distinct, some))
    ascending[0] = ascending[0][::-1].copy()

    def fills() -> None:
        for factor in (0.5, 1.0, 9.0):
            filling = filler.fill(factor * target)
            assert isinstance(filling, Shortfall) or filling.bins
        with pytest.raises(ValueError, match="lengths must descend"):
            fill_kernel.make_costs(*ascending, 1, *BUBBLES)
        assert ClassCosts(batch.distinct, some).compiled

    assert measure_growth(fills, 100) < 50_000


def test_lengths_beyond_exact_floats_are_left_to_python() -> None:
    some = PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=2**54, unit=1, count=1, gpus=1)
    batch = Batch.from_lengths([2**53 + 1])
    assert not FillStarter(FillTables.from_batch(batch), [some]).compiled
    assert isinstance(Filler(fleet((some,)), batch).fill(2.0**54), Filling)
