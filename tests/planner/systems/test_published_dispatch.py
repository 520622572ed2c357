"""The published dispatch: the exact program against enumeration, the greedy trials against it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import Case, cases
from oracles.ilp_dispatch import ilp_dispatch

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.systems.programs.greedy_dispatch import dispatch_bound_ms, greedy_dispatch

PAIR = (
    PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=10, unit=1, count=1, gpus=2),
    PipelineClass(pp=1, a=0.0, b=2.0, c=0.0, capacity=4, unit=1, count=2, gpus=1),
)


def each_of(classes: tuple[PipelineClass, ...]) -> list[PipelineClass]:
    return [pipeline for pipeline in classes for _ in range(pipeline.count)]


def slowest(classes: tuple[PipelineClass, ...], batch: Batch, pipelines: object) -> float:
    assert isinstance(pipelines, (list, tuple))
    return max(
        dispatch_bound_ms(pipeline, [batch.lengths[i] for i in part])
        for pipeline, part in zip(each_of(classes), pipelines, strict=True)
    )


def check_assignment(classes: tuple[PipelineClass, ...], batch: Batch, pipelines: object) -> None:
    assert isinstance(pipelines, (list, tuple))
    assert sorted(i for part in pipelines for i in part) == list(range(len(batch.lengths)))
    for pipeline, part in zip(each_of(classes), pipelines, strict=True):
        assert all(batch.lengths[i] <= pipeline.capacity for i in part)


def least(classes: tuple[PipelineClass, ...], batch: Batch) -> float:
    """The least slowest bound over every assignment."""
    pipelines = each_of(classes)
    best = np.inf
    for choice in itertools.product(range(len(pipelines)), repeat=len(batch.lengths)):
        pairs = list(zip(batch.lengths, choice, strict=True))
        if all(length <= pipelines[p].capacity for length, p in pairs):
            parts = [[length for length, q in pairs if q == p] for p in range(len(pipelines))]
            best = min(best, max(map(dispatch_bound_ms, pipelines, parts)))
    return best


@settings(max_examples=17)
@given(cases(most=4))
def test_the_program_finds_the_least_bound(case: Case) -> None:
    classes, batch = case
    solution = ilp_dispatch(classes, batch)
    check_assignment(classes, batch, solution.pipelines)
    assert solution.objective_ms == pytest.approx(slowest(classes, batch, solution.pipelines))
    assert solution.objective_ms == pytest.approx(least(classes, batch), rel=1e-5)
    assert solution.lower_bound_ms <= solution.objective_ms
    assert solution.optimal or solution.lower_bound_ms == pytest.approx(
        solution.objective_ms, rel=1e-5
    )


@settings(max_examples=27)
@given(cases(), st.sampled_from(["random", "descending"]))
def test_greedy_assignments_are_complete_and_repeat(case: Case, order: str) -> None:
    classes, batch = case
    once, again = (
        greedy_dispatch(
            classes,
            batch,
            trials=8,
            seed=3,
            order=order,  # type: ignore[arg-type]
        )
        for _ in range(2)
    )
    assert once == again
    check_assignment(classes, batch, once)
    if len(batch.lengths) <= 6:
        assert slowest(classes, batch, once) >= least(classes, batch) * (1 - 1e-9)


@settings(max_examples=27)
@given(cases())
def test_a_trial_gives_each_sequence_to_the_first_to_end(case: Case) -> None:
    """Longest first with one trial and no equal lengths is a plain greedy: written out here."""
    classes, batch = case
    batch = Batch.from_lengths(sorted(set(batch.lengths), reverse=True))
    pipelines = each_of(classes)
    parts: list[list[int]] = [[] for _ in pipelines]
    for i, length in enumerate(batch.lengths):
        times = []
        for pipeline, part in zip(pipelines, parts, strict=True):
            after = [*(batch.lengths[j] for j in part), length]
            time = dispatch_bound_ms(replace(pipeline, c=0.0), after)
            times.append(time if length <= pipeline.capacity else np.inf)
        least_time = min(times)
        ties = [p for p, time in enumerate(times) if time <= least_time * (1 + 1e-12)]
        if len(ties) > 1:
            return  # rounding may decide
        parts[ties[0]].append(i)
    assert greedy_dispatch(classes, batch, trials=1, order="descending") == parts


def test_trials_that_leave_a_pipeline_empty_are_rejected_unless_all_do() -> None:
    assert all(greedy_dispatch(PAIR, Batch.from_lengths([8, 1, 1]), trials=50))
    assert sum(map(len, greedy_dispatch(PAIR, Batch.from_lengths([8]), trials=5))) == 1


def test_too_long_a_sequence_and_no_trials_are_rejected() -> None:
    with pytest.raises(ValueError, match="11 tokens exceeds every pipeline's 10"):
        greedy_dispatch(PAIR, Batch.from_lengths([11]))
    with pytest.raises(ValueError, match="trials must be 1 or more, not 0"):
        greedy_dispatch(PAIR, Batch.from_lengths([1]), trials=0)


def test_the_bound_of_a_pipeline_by_hand() -> None:
    pipeline = PipelineClass(pp=3, a=0.1, b=1.0, c=5.0, capacity=16, unit=4, count=1, gpus=3)
    # Work 3.0·1.3 … : 3 → 3.9, 10 → 20; padded 4 + 12 = 16, so V = 1.
    assert dispatch_bound_ms(replace(pipeline, c=0.0), [3, 10]) == pytest.approx(23.9 + 40)
    assert dispatch_bound_ms(pipeline, [3, 10]) == pytest.approx(23.9 + 5 + 2 * 25)
    assert dispatch_bound_ms(pipeline, [3, 10, 1]) == pytest.approx(25.0 + 10 + 2 * 25)
    assert dispatch_bound_ms(pipeline, []) == 0


def test_running_out_of_time_is_not_called_optimal() -> None:
    rng = np.random.default_rng(0)
    classes = (PipelineClass(2, 1e-4, 1.0, 3.0, 4000, 1, 7, 2), PAIR[0])
    batch = Batch.from_lengths(rng.integers(1, 3000, 150).tolist())
    solution = ilp_dispatch(classes, batch, time_limit_s=1.0)
    check_assignment(classes, batch, solution.pipelines)
    assert solution.lower_bound_ms <= solution.objective_ms
    assert not solution.optimal
