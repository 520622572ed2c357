"""No lower bound exceeds the optimum, whatever the values and mixes it is made from."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import Case, cases, fleet, random_case, random_case_with_modes
from oracles.exhaustive import any_strategy_optimum, literal_optimum, step_optimum
from stress_bounds import SLACK, worst_ratio

from seqplan import Batch, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.all_strategies import AllStrategies, fitting_time
from seqplan.planner.bounds.certificate import bound_by_relaxation_ms, certify
from seqplan.planner.bounds.gpu_time import area_bound_ms, gpu_time_bound_ms, single_bound_ms
from seqplan.planner.bounds.relaxation import peak_levels, relax
from seqplan.planner.bounds.resources import ClassLengths, count_resources
from seqplan.planner.bounds.witness import find_witness
from seqplan.planner.placement.fleet import ClassMode, Floats, PipelineClass


@settings(max_examples=27)
@given(cases(most=4, pipelines=2))
def test_the_oracle_agrees_with_plain_enumeration(case: Case) -> None:
    classes, batch = case
    if len(batch.lengths) <= 5:
        assert step_optimum(classes, batch, least=True) == pytest.approx(
            literal_optimum(classes, batch, least=True)
        )


@settings(max_examples=45)
@given(cases())
def test_cheap_bounds(case: Case) -> None:
    classes, batch = case
    optimum = step_optimum(classes, batch, least=True)
    assert single_bound_ms(classes, batch) <= optimum * SLACK
    assert area_bound_ms(classes, batch) <= optimum * SLACK


@settings(max_examples=67)
@given(cases(), st.sampled_from([None, 2, 3, 4]))
def test_gpu_time_and_places(case: Case, gpus: int | None) -> None:
    classes, batch = case
    if gpus is None:
        optimum = step_optimum(classes, batch, least=True)
        gpus = sum(k.gpus * k.count for k in classes)
    else:
        optimum = any_strategy_optimum(classes, batch, gpus, least=True)
    if np.isfinite(optimum):
        assert single_bound_ms(classes, batch) <= gpu_time_bound_ms(classes, batch, gpus) * SLACK
        assert gpu_time_bound_ms(classes, batch, gpus) <= optimum * SLACK


@given(cases(), st.floats(0.5, 3.0), st.integers(0, 2**32))
def test_weighed_shares_are_sums_of_shares(case: Case, share: float, seed: int) -> None:
    classes, batch = case
    number = count_resources(classes)
    time_ms = share * area_bound_ms(classes, batch)
    levels = peak_levels(batch.distinct)
    for k in classes:
        lengths = ClassLengths(k, batch.distinct, batch.multiplicity, levels, number)
        micro_batches = np.arange(1, k.most_micro_batches(time_ms) + 1)
        shares, of_states = lengths.shares(micro_batches, time_ms)
        weights = np.random.default_rng(seed).random((len(shares), 2, number))
        weighed, eligible = lengths.shares(micro_batches, time_ms, weights)
        np.testing.assert_array_equal(eligible, of_states)
        np.testing.assert_allclose(weighed, weights @ shares, rtol=1e-12)


def test_micro_batches_that_cost_nothing_are_not_limited() -> None:
    """Without overhead, stages are filled the better the more micro-batches there are."""
    pipeline = PipelineClass(pp=4, a=0.0, b=1.0, c=0.0, capacity=6, unit=1, count=1, gpus=1)
    batch = Batch.from_lengths([1] * 200)
    some = fleet((pipeline,))
    one_by_one = 200 + 3 * 1.0
    assert certify(some, batch, 1.1 * one_by_one) <= one_by_one * SLACK
    assert find_witness(some, batch, one_by_one * 1.001) is None


def test_sequences_that_only_large_groups_hold_are_counted() -> None:
    """Five of them on four such groups: two run one after another, whatever the others do."""
    small = PipelineClass(pp=1, a=0.0, b=1.0, c=5.0, capacity=100, unit=1, count=1, gpus=1)
    large = PipelineClass(pp=1, a=0.0, b=0.3, c=5.0, capacity=400, unit=1, count=1, gpus=4)
    batch = Batch.from_lengths([400, 400, 400, 400, 380, *[10] * 5])
    bound = gpu_time_bound_ms((small, large), batch, 16)
    assert bound == pytest.approx((400 + 380) * 0.3 + 2 * 5.0)
    assert gpu_time_bound_ms((small, large), batch, 19) == bound  # three GPUs hold none of them


def test_stages_are_filled_and_drained_whatever_the_number_of_micro_batches() -> None:
    """Four full micro-batches on each of two pipelines, and the least bubbles of four."""
    pipeline = PipelineClass(pp=2, a=0.0, b=1.0, c=2.0, capacity=10, unit=1, count=2, gpus=2)
    batch = Batch.from_lengths([10] * 8)
    of_mean = pipeline.bubbles_by_number[0][3]
    bound = gpu_time_bound_ms((pipeline,), batch, 4)
    assert bound == pytest.approx((4 + of_mean) * (10 + 2.0), rel=2e-3)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_where_every_class_has_stages(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        made, batch = (random_case, random_case_with_modes)[seed % 2](rng)
        classes = [replace(k, pp=int(rng.integers(2, 4))) for k in made]
        gpus = int(rng.integers(2, 7))
        optimum = any_strategy_optimum(tuple(classes), batch, gpus, least=True)
        assert gpu_time_bound_ms(classes, batch, gpus) <= optimum * SLACK


@settings(max_examples=45)
@given(cases(), st.floats(0.5, 3), st.floats(1, 2), st.sampled_from([None, 2, 4]))
def test_relaxed_bound(case: Case, at: float, high: float, gpus: int | None) -> None:
    classes, batch = case
    if gpus is None:
        optimum = step_optimum(classes, batch, least=True)
    else:
        optimum = any_strategy_optimum(classes, batch, gpus, least=True)
    if not np.isfinite(optimum):
        return
    relaxation = relax(classes, batch, optimum * at, gpus)
    if relaxation is not None:
        bound = bound_by_relaxation_ms(classes, batch, relaxation, 0.0, optimum * high, gpus)
        assert bound <= optimum * SLACK


@pytest.mark.parametrize("seed", range(16))
def test_random_values_and_mixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, batch = random_case(rng)
    assert worst_ratio(classes, batch, rng) <= SLACK


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_whatever_modes_micro_batches_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, batch = random_case_with_modes(rng)
    assert worst_ratio(classes, batch, rng) <= SLACK
    gpus = sum(k.gpus * k.count for k in classes)
    optimum = step_optimum(classes, batch, least=True)
    assert area_bound_ms(classes, batch) <= optimum * SLACK
    assert single_bound_ms(classes, batch) <= optimum * SLACK
    assert gpu_time_bound_ms(classes, batch, gpus) <= optimum * SLACK
    if np.isfinite(optimum):
        assert certify(fleet(classes), batch, optimum * 1.05) <= optimum * SLACK


@settings(max_examples=67)
@given(st.integers(0, 2**32), st.integers(1, 2))
def test_shares_of_all_micro_batches_hold(seed: int, micro_batches: int) -> None:
    """Sequences in micro-batches of any modes take at most the time of these."""
    rng = np.random.default_rng(seed)
    classes, batch = random_case_with_modes(rng)
    k = next((k for k in classes if k.modes), None)
    if k is None:
        return
    chosen = rng.integers(len(k.modes), size=micro_batches)
    contents: list[list[int]] = [[] for _ in chosen]
    for length in rng.permutation(np.repeat(batch.lengths, 3)).tolist():
        place = int(rng.integers(micro_batches))
        if k.padded(np.array([*contents[place], length])).sum() <= k.modes[chosen[place]].capacity:
            contents[place].append(length)
    time_ms = sum(
        k.modes[mode].micro_batch_ms(held) for mode, held in zip(chosen, contents, strict=True)
    )
    everything = Batch.from_lengths([*chain(*contents), *batch.lengths])
    lengths = ClassLengths(k, everything.distinct, everything.multiplicity, np.array([0]), 5)
    share = dict(
        zip(
            everything.distinct.tolist(),
            lengths.shares_of_all_micro_batches(micro_batches, time_ms * SLACK),
            strict=True,
        )
    )
    assert sum(share[length] for length in chain(*contents)) <= SLACK


def test_a_pipeline_cannot_mix_modes_in_a_micro_batch() -> None:
    """Three micro-batches of the small mode or one of the other, and nothing between."""
    modes = (ClassMode(0.0, 1.0, 15.0, 10, "none"), ClassMode(0.0, 2.0, 15.0, 100, "full"))
    k = PipelineClass(1, 0.0, 2.0, 15.0, 100, 1, 1, 1, modes)
    classes, batch = (k,), Batch.from_lengths([1] * 30)
    optimum = step_optimum(classes, batch, least=True)
    assert optimum == 75.0
    assert certify(fleet(classes), batch, optimum) == pytest.approx(optimum, rel=1e-3)


@pytest.mark.parametrize(
    ("planted", "replaced"),
    [
        # The work of the mode that recomputes most, in place of the cheapest that holds a length.
        ("work_ms", lambda k, n: n * (k.modes[-1].a * n + k.modes[-1].b)),
        # The c of the smallest micro-batch for every token.
        (
            "work_with_overhead_ms",
            lambda k, n: (
                n * (k.modes[-1].a * n + k.modes[-1].b) + n * (k.modes[0].c / k.modes[0].capacity)
            ),
        ),
    ],
)
def test_bounds_with_an_error_are_caught(
    planted: str,
    replaced: Callable[[PipelineClass, Floats], Floats],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = getattr(PipelineClass, planted)
    monkeypatch.setattr(
        PipelineClass,
        planted,
        lambda k, lengths: replaced(k, lengths * 1.0) if k.modes else right(k, lengths),
    )
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        classes, batch = random_case_with_modes(rng)
        worst = max(worst, worst_ratio(classes, batch, rng))
        if worst > 1.01:
            break
    assert worst > 1.01


def test_the_oracle_of_modes_agrees_with_plain_enumeration() -> None:
    compared = 0
    for seed in range(60):
        classes, batch = random_case_with_modes(np.random.default_rng(seed))
        if len(batch.lengths) <= 5 and sum(k.count for k in classes) <= 2:
            assert step_optimum(classes, batch, least=True) == pytest.approx(
                literal_optimum(classes, batch, least=True)
            )
            compared += 1
    assert compared > 5


ONCE_WRONG = [
    # One micro-batch much above the mean: 10 and 1 do not fit together, though 11 would at V = 2.
    ((PipelineClass(2, 0.0, 1.0, 0.0, 10, 1, 1, 1),), (10, 1)),
    ((PipelineClass(2, 0.0, 1.0, 0.0, 11, 1, 1, 1),), (10, 1)),
    # Three sequences above half of β in two micro-batches.
    ((PipelineClass(2, 0.0, 1.0, 4.0, 100, 1, 1, 1),), (31, 31, 31)),
    ((PipelineClass(2, 0.001, 2.5, 0.5, 140, 4, 1, 3),), (17, 8, 8, 17, 17, 17)),
    # Padding to 8 tokens: more micro-batches than the work of one-token sequences suggests.
    ((PipelineClass(1, 0.0, 0.5, 0.0, 8, 8, 2, 1),), (1,) * 7),
    ((PipelineClass(4, 0.3, 1.0, 0.0, 8, 4, 1, 3),), (4, 3, 7, 4, 3, 7, 7, 3, 4, 7)),
]


@pytest.mark.parametrize(("classes", "lengths"), ONCE_WRONG)
def test_instances_that_broke_a_bound(
    classes: tuple[PipelineClass, ...], lengths: tuple[int, ...]
) -> None:
    batch = Batch.from_lengths(lengths)
    for seed in range(5):
        assert worst_ratio(classes, batch, np.random.default_rng(seed)) <= SLACK


def test_the_bound_is_exact_where_nothing_is_lost() -> None:
    pipeline = PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=10, unit=1, count=2, gpus=1)
    batch = Batch.from_lengths([5] * 8)
    relaxation = relax([pipeline], batch, 19.99)
    assert relaxation is not None
    assert bound_by_relaxation_ms([pipeline], batch, relaxation, 0.0, 20.0) == pytest.approx(
        20, rel=1e-3
    )


@pytest.mark.parametrize("seed", [0, 3])
def test_values_of_a_shorter_time_prove_the_program_s_bound(seed: int) -> None:
    # Similar lengths are one group of the program, which limits what a sequence is worth by the
    # group's mean: a longer one may be worth more than it takes of a pipeline that the mean is in.
    workload = Workload(256, 32768, 800_000)
    profile = load_shipped("llama-32b-a800-80gb")
    layouts = ((4, 4), (8, 2), (2, 6), (16, 1))
    models = {s: m for s, m in workload.models(profile).items() if (s.tp, s.pp) in layouts}
    every_strategy = AllStrategies(models, workload.gpus)
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(6.2, 1.4, 620), 16, 32768).astype(int)
    batch = Batch.from_lengths(lengths.tolist())
    _, fitting_ms = fitting_time(every_strategy, batch)
    relaxation = every_strategy.relax(batch, fitting_ms * 0.96)
    assert relaxation is not None
    bound = bound_by_relaxation_ms(
        every_strategy.classes, batch, relaxation, 0.0, fitting_ms * 1.2, workload.gpus
    )
    assert fitting_ms * 0.995 < bound <= fitting_ms * 1.005
