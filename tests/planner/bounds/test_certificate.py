"""The certificate of a plan against the optimum."""

from __future__ import annotations

from hypothesis import given, settings
from instances import Case, cases, fleet
from oracles.exhaustive import step_optimum

from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler


@settings(max_examples=90, deadline=None)
@given(cases())
def test_a_certificate_is_a_bound_on_every_placement_of_the_fleet(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    if filling is not None:
        proven = certify(some, batch, filling.objective_ms)
        assert proven <= step_optimum(some.classes, batch) * (1 + 1e-9)
