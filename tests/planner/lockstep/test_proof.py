"""The bound by micro-step: never above the best, and closer than the bound over all."""

from __future__ import annotations

from hypothesis import given, settings
from oracles.micro_steps import least_micro_steps_ms
from test_micro_steps import settings_of_micro_steps

from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import prove_micro_steps
from seqplan.planner.placement.fleet import PipelineClass

STRETCHED = [93_000, 41_000, 30_000, 22_000, 15_000, 9_000] + [2_200] * 40 + [900] * 120


@settings(max_examples=8, deadline=None)
@given(settings_of_micro_steps())
def test_it_is_never_above_the_best_micro_steps(case: tuple[list[SchemeModel], Batch, int]) -> None:
    models, batch, gpus = case
    micro_steps = plan_micro_steps(batch, models, gpus)
    assert micro_steps is not None
    proven = prove_micro_steps(micro_steps, batch)
    best = least_micro_steps_ms(
        [PipelineClass.from_model(model, 1) for model in models], batch.lengths, gpus
    )
    assert micro_steps.lower_bound_ms <= proven.lower_bound_ms <= best * (1 + 1e-9)
    assert proven.micro_steps == micro_steps.micro_steps


def test_a_micro_step_that_a_long_sequence_stretches_cannot_be_filled() -> None:
    models = load_shipped("gpt-7b-a100-40gb").usable(64, 196_608)
    batch = Batch.from_lengths(STRETCHED)
    micro_steps = plan_micro_steps(batch, models, 64)
    assert micro_steps is not None
    before = micro_steps.objective_ms / micro_steps.lower_bound_ms - 1
    proven = prove_micro_steps(micro_steps, batch)
    after = proven.objective_ms / proven.lower_bound_ms - 1
    assert before > 0.1
    assert after < before / 2
