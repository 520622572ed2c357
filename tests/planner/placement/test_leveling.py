"""Levelling, and exchanges on one stage: placements stay sound and become no slower."""

from hypothesis import given, settings
from instances import Case, assert_sound, cases, fleet
from oracles.exhaustive import step_optimum

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import exchange_sequences, level_pipelines
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import PipelineClass


@settings(max_examples=60)
@given(cases())
def test_a_placement_stays_sound_and_is_no_slower(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filler = Filler(some, batch)
    filling = dispatch(filler, single_bound_ms(some.classes, batch))
    if filling is None:
        return
    exchanged = exchange_sequences(some, batch, filling, 0.0)
    leveled = level_pipelines(some, batch, exchanged)
    assert leveled.objective_ms <= exchanged.objective_ms * (1 + 1e-9)
    for changed in (exchanged, leveled):
        assert_sound(some, batch, changed, in_order=some.has_stages)
        if not some.has_stages:
            assert changed.objective_ms <= filling.objective_ms * (1 + 1e-9)
            assert changed.objective_ms >= step_optimum(some.classes, batch) * (1 - 1e-9)


def test_pipelines_that_do_not_bind_are_even() -> None:
    """A long sequence takes the whole step; greedy placement leaves the last pipeline empty."""
    one = PipelineClass(pp=1, a=0.0, b=1.0, c=0.0, capacity=100, unit=1, count=4, gpus=1)
    batch = Batch.from_lengths([90, *[10] * 18])
    filling = dispatch(Filler(fleet((one,)), batch), 90.0)
    assert sorted(filling.pipeline_ms[0]) == [0.0, 90.0, 90.0, 90.0]
    leveled = level_pipelines(fleet((one,)), batch, filling)
    assert sorted(leveled.pipeline_ms[0]) == [60.0, 60.0, 60.0, 90.0]
