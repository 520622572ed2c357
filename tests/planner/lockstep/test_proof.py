"""The bound by round: never above the best rounds, and closer than the bound over all of them."""

from __future__ import annotations

from hypothesis import given, settings
from oracles.rounds import least_rounds_ms
from test_rounds import settings_of_rounds

from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_rounds import plan_rounds
from seqplan.planner.lockstep.proof import prove_rounds
from seqplan.planner.placement.fleet import PipelineClass

STRETCHED = [93_000, 41_000, 30_000, 22_000, 15_000, 9_000] + [2_200] * 40 + [900] * 120


@settings(max_examples=8, deadline=None)
@given(settings_of_rounds())
def test_it_is_never_above_the_best_rounds(case: tuple[list[SchemeModel], Batch, int]) -> None:
    models, batch, gpus = case
    rounds = plan_rounds(batch, models, gpus)
    assert rounds is not None
    proven = prove_rounds(rounds, batch)
    best = least_rounds_ms(
        [PipelineClass.from_model(model, 1) for model in models], batch.lengths, gpus
    )
    assert rounds.lower_bound_ms <= proven.lower_bound_ms <= best * (1 + 1e-9)
    assert proven.rounds == rounds.rounds


def test_a_round_that_a_long_sequence_stretches_cannot_be_filled() -> None:
    models = load_shipped("gpt-7b-a100-40gb").usable(64, 196_608)
    batch = Batch.from_lengths(STRETCHED)
    rounds = plan_rounds(batch, models, 64)
    assert rounds is not None
    before = rounds.objective_ms / rounds.lower_bound_ms - 1
    proven = prove_rounds(rounds, batch)
    after = proven.objective_ms / proven.lower_bound_ms - 1
    assert before > 0.1
    assert after < before / 2
