"""Placements are complete and keep their promises; the search never beats the optimum."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from instances import Case, cases, fleet, random_case
from oracles.exhaustive import step_optimum

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import bound_by_relaxation_ms
from seqplan.planner.bounds.gpu_time import area_bound_ms, single_bound_ms
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.placement.bubbles import Bubbles
from seqplan.planner.placement.dispatch import dispatch, probe
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import PipelineClass

SLACK = 1 + 1e-9


def check(classes: tuple[PipelineClass, ...], batch: Batch, filling: Filling) -> None:
    """Every sequence once, MaxLen kept after padding, and times as estimated."""
    placed = np.zeros(len(batch.distinct), dtype=int)
    lengths = batch.distinct.tolist()
    for pipeline, pipelines, times in zip(classes, filling.bins, filling.pipeline_ms, strict=True):
        assert len(pipelines) == len(times) == pipeline.count
        for micro_batches, time in zip(pipelines, times, strict=True):
            costs = []
            for micro in micro_batches:
                assert micro
                assert all(n >= 1 for _, n in micro)
                padded = sum(n * -(-lengths[i] // pipeline.unit) * pipeline.unit for i, n in micro)
                assert padded <= pipeline.capacity
                work = sum(
                    n * (pipeline.a * lengths[i] ** 2 + pipeline.b * lengths[i]) for i, n in micro
                )
                costs.append(work + pipeline.c)
                for i, n in micro:
                    placed[i] += n
            largest = max(costs, default=0.0)
            bubbles = Bubbles.from_forward(
                pipeline.pp, pipeline.forward_fraction, len(batch.lengths)
            )
            whole = sum(costs) + bubbles.of(len(costs)) * largest
            assert time == pytest.approx(max(whole, pipeline.pp * largest))
    assert placed.tolist() == batch.multiplicity.tolist()
    assert filling.objective_ms == max(max(times) for times in filling.pipeline_ms)


@settings(max_examples=53)
@given(cases(most=10), st.floats(0.8, 4))
def test_a_filling_ends_by_its_target(case: Case, factor: float) -> None:
    classes, batch = case
    filler = Filler(fleet(classes), batch)
    target = single_bound_ms(classes, batch) * factor
    filling = filler.fill(target)
    if isinstance(filling, Filling):
        check(classes, batch, filling)
        assert filling.objective_ms <= target * SLACK


@settings(max_examples=45)
@given(cases())
def test_dispatch_is_between_its_bounds_and_enough(case: Case) -> None:
    classes, batch = case
    filler = Filler(fleet(classes), batch)
    lower = single_bound_ms(classes, batch)
    filling = dispatch(filler, lower)
    check(classes, batch, filling)
    optimum = step_optimum(classes, batch)
    assert optimum <= filling.objective_ms * SLACK
    least = step_optimum(classes, batch, least=True)
    assert area_bound_ms(classes, batch) <= least * SLACK
    relaxation = relax(classes, batch, filling.objective_ms)
    if relaxation is not None:
        bound = bound_by_relaxation_ms(classes, batch, relaxation, lower, filling.objective_ms)
        assert bound <= least * SLACK


@settings(max_examples=45)
@given(cases(most=10), st.floats(1, 3))
@example(  # the fill below is 10⁻¹⁶ above its target
    (
        (PipelineClass(pp=3, a=0.3, b=0.1, c=0.0, capacity=23, unit=1, count=3, gpus=1),),
        Batch(0, (0, 1, 2, 3), (2, 16, 21, 23)),
    ),
    1.0,
)
def test_a_known_placement_is_only_improved(case: Case, factor: float) -> None:
    classes, batch = case
    filler = Filler(fleet(classes), batch)
    lower = single_bound_ms(classes, batch)
    rough = dispatch(filler, lower * factor)
    better = dispatch(filler, lower, known=rough)
    assert better.objective_ms <= rough.objective_ms
    below = probe(filler, lower, better.objective_ms)
    assert below is None or below.objective_ms < better.objective_ms
    assert dispatch(filler, lower, below_ms=lower) is None


def test_dispatch_is_near_the_optimum_on_small_instances() -> None:
    ratios = []
    for seed in range(200):
        classes, batch = random_case(np.random.default_rng(seed))
        filling = dispatch(Filler(fleet(classes), batch), single_bound_ms(classes, batch))
        ratios.append(filling.objective_ms / step_optimum(classes, batch))
    assert min(ratios) >= 1 - 1e-9
    assert np.median(ratios) < 1.05


def test_a_sequence_that_fits_nowhere() -> None:
    classes = (PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=10, unit=1, count=1, gpus=1),)
    assert dispatch(Filler(fleet(classes), Batch.from_lengths([11])), 11.0) is None


def test_the_long_pipeline_is_kept_for_sequences_only_it_holds() -> None:
    long = PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=20, unit=1, count=1, gpus=2)
    short = PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=5, unit=1, count=2, gpus=1)
    batch = Batch.from_lengths([12, 12, 12, *[5] * 14])
    assert dispatch(Filler(fleet((long, short)), batch), 36.0).objective_ms == pytest.approx(36)
