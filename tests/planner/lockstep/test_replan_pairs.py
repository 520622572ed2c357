"""Pairs of micro-steps planned anew: complete plans, shorter, the same every time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from micro_step_cases import list_models
from step_lengths import CODE, draw_clipped

from seqplan import Planner
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.replan_pairs import replan_pairs
from seqplan.planner.workload import Workload
from seqplan.plans.lint import lint
from seqplan.plans.plan import Provenance

PROFILE = "llama-32b-a800-80gb"
PROVENANCE = Provenance("0", 0, "sha256:0", None)


@settings(max_examples=8)
@given(st.integers(0, 10_000), st.integers(20, 70), st.sampled_from([(4, 1), (8, 1)]))
def test_they_are_complete_and_no_longer(seed: int, number: int, layout: tuple[int, int]) -> None:
    models = list_models(PROFILE, 32, 32_768, layout)
    longest = max(model.max_sequence for model in models)
    lengths = np.minimum(np.random.default_rng(seed).choice(CODE, number), longest)
    batch = Batch.from_lengths(lengths.tolist())
    before = plan_micro_steps(batch, models, 32)
    after = replan_pairs(before, batch, models, 32)
    assert after == replan_pairs(before, batch, models, 32)
    assert after.objective_ms <= before.objective_ms
    assert after.lower_bound_ms == pytest.approx(before.lower_bound_ms)
    plan = assemble_micro_steps(batch, after, PROVENANCE, 32, forward_fraction=1 / 3)
    assert lint(plan, {model.scheme: model for model in models}) == []
    assert plan.predicted_ms == pytest.approx(after.objective_ms, abs=0.1)


def test_many_micro_steps_with_long_sequences_are_near_their_bound() -> None:
    """Filled one after another they take 4.4 % more than the bound."""
    planner = Planner.from_profile(PROFILE, 64, 131_072, sync=None, execution="lockstep")
    plan = planner.plan(draw_clipped(800_000, 1, 131_072))
    assert plan.gap < 0.02
    models = Workload(64, 131_072, 800_000).models(load_shipped(PROFILE))
    assert lint(plan, models) == []


def test_plans_with_stages_stay() -> None:
    models = list_models(PROFILE, 64, 32_768, (4, 2))
    batch = Batch.from_lengths(np.minimum(CODE, 32_768)[:300].tolist())
    micro_steps = plan_micro_steps(batch, models, 64)
    assert len(micro_steps.micro_steps) > 2
    assert replan_pairs(micro_steps, batch, models, 64) is micro_steps


def test_a_plan_without_a_close_bound_is_proven_later() -> None:
    quick = Planner.from_profile(PROFILE, 64, 32_768, sync=None, execution="lockstep", prove=False)
    plan = quick.plan(draw_clipped(200_000, 2))
    proven = quick.prove(plan)
    assert proven.pipelines == plan.pipelines
    assert proven.gap < 0.015 < plan.gap
    assert proven.layout_gap == proven.gap
    assert quick.prove(proven) == proven
