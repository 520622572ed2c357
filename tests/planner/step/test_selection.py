"""Which candidate a step is planned on, and what is said of the others."""

from __future__ import annotations

import pytest
from instances import LLAMA_32B, assert_sound, batch_of

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.step.selection import select
from seqplan.plans.scheme import Strategy


def test_selection_plans_on_the_best_candidate_and_accounts_for_all() -> None:
    batch = batch_of(1)
    candidates = [Strategy.parse(text) for text in ("4xtp16", "1xtp16+12xtp4", "16xtp4")]
    chosen = select(batch, candidates, LLAMA_32B, 64, tailor=False)
    assert_sound(chosen.placement.fleet, batch, chosen.placement.filling)
    times = {}
    for strategy in candidates:
        some = Fleet.of(strategy, LLAMA_32B)
        if some.max_sequence >= batch.longest:
            filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
            assert filling is not None
            times[strategy] = filling.objective_ms
    assert chosen.placement.filling.objective_ms <= min(times.values()) * 1.002
    assert {entry.strategy for entry in chosen.considered} == set(times)
    for entry in chosen.considered:
        assert entry.lower_bound_ms <= times[entry.strategy] * (1 + 1e-9)
    tailored = select(batch, candidates, LLAMA_32B, 64)
    assert tailored.placement.filling.objective_ms <= chosen.placement.filling.objective_ms * (
        1 + 1e-9
    )
    assert_sound(tailored.placement.fleet, batch, tailored.placement.filling)


def test_selection_says_which_sequence_no_candidate_holds() -> None:
    batch = Batch(7, (40, 41), (100, 30000))
    with pytest.raises(Infeasible, match=r"step 7: sequence 41 has 30000 tokens.*21928"):
        select(batch, [Strategy.parse("8xtp8")], LLAMA_32B, 64)
