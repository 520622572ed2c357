"""Levelling, and exchanges on one stage: placements stay sound and become no slower."""

from hypothesis import given, settings
from instances import Case, assert_sound, cases, fleet
from oracles.exhaustive import step_optimum

from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import dispatch, level
from seqplan.planner.placement.exchange import exchange_sequences
from seqplan.planner.placement.fill import Filler


@settings(max_examples=60)
@given(cases())
def test_a_placement_stays_sound_and_is_no_slower(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filler = Filler(some, batch)
    filling = dispatch(filler, single_bound_ms(some.classes, batch))
    if filling is None:
        return
    fillings = [level(filler, filling, 0.0)]
    if not some.has_stages:
        fillings.append(exchange_sequences(some, batch, filling, 0.0))
    for changed in fillings:
        assert_sound(some, batch, changed)
        assert changed.objective_ms <= filling.objective_ms * (1 + 1e-9)
        assert changed.objective_ms >= step_optimum(some.classes, batch) * (1 - 1e-9)
