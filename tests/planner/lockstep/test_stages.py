"""Micro-steps that go through stages: what they cost, near the optimum, and never below it."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from micro_step_cases import PLANNER, MicroStepCase, micro_step_cases

from seqplan import Batch, Planner, Scheme, explain, find_profile
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.bounds.micro_step_bounds import in_stages_ms
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.simulation.one_f_one_b import simulate_ms
from seqplan.planner.simulation.timeline import pipelines_timeline, simulate_plan_ms
from seqplan.plans.lint import lint


def test_fewer_micro_steps_are_taken_where_more_are_no_multiple() -> None:
    """A micro-step for each of 5 sequences is faster, and 6 cannot be filled."""
    models = [SchemeModel(Scheme(pp=2), Latency(0.0, 0.3, 0.0), 2)]
    micro_steps = plan_micro_steps(Batch(0, tuple(range(5)), (1,) * 5), models, 2, 2)
    assert len(micro_steps.micro_steps) == 4


@settings(max_examples=27)
@given(micro_step_cases((2, 3)), st.integers(1, 3))
def test_their_plans_break_no_rule_and_no_simulation_takes_longer(
    case: MicroStepCase, multiple: int
) -> None:
    models, batch, gpus = case
    try:
        micro_steps = plan_micro_steps(batch, models, gpus, multiple)
    except ValueError:
        assert len(batch.lengths) % multiple  # a micro-step for each would be a multiple else
        return
    assert len(micro_steps.micro_steps) % multiple == 0
    plan = assemble_micro_steps(batch, micro_steps, PLANNER, gpus, forward_fraction=1 / 3)
    assert lint(plan, {model.scheme: model for model in models}) == []
    assert plan.predicted_ms == pytest.approx(micro_steps.objective_ms, abs=0.01)
    assert simulate_plan_ms(plan) <= plan.predicted_ms + 1e-6
    times = pipelines_timeline(plan.pipelines)
    assert times.simulated_ms == pytest.approx(simulate_plan_ms(plan))
    assert max(placed.end_ms for placed in times.pipelines) <= times.simulated_ms + 1e-6


@given(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1, max_size=9), st.integers(1, 5))
def test_equal_micro_steps_take_as_long_as_their_simulation(
    costs: list[float], stages: int
) -> None:
    """Form S is exact for equal micro-steps, and above the simulation for others."""
    equal = [costs[0]] * len(costs)
    assert in_stages_ms(equal, stages) == pytest.approx(simulate_ms(equal, stages))
    ascending = sorted(costs)
    hill = ascending[0::2] + ascending[1::2][::-1]
    assert simulate_ms(hill, stages) <= in_stages_ms(costs, stages) + 1e-9


@settings(max_examples=27)
@given(micro_step_cases((2, 3)))
def test_no_rank_is_idle_where_sequences_are_enough(case: MicroStepCase) -> None:
    models, batch, gpus = case
    micro_steps = plan_micro_steps(batch, models, gpus)
    largest = max(c.gpus for c in micro_steps.classes)
    assume(
        micro_steps.ranks % largest == 0 and all(largest % c.gpus == 0 for c in micro_steps.classes)
    )
    groups = [group for micro_step in micro_steps.micro_steps for group in micro_step.groups]
    idle = [
        micro_steps.ranks - sum(micro_steps.classes[k].gpus for k, _ in micro_step.groups)
        for micro_step in micro_steps.micro_steps
    ]
    # A rank idles only where every group has one sequence, on the most ranks there can be.
    if any(idle):
        assert all(len(positions) == 1 for _, positions in groups)


def test_micro_steps_with_stages_name_the_form_of_their_time() -> None:
    profile = find_profile("llama-32b-a800-80gb")
    planner = Planner.from_profile(profile, 32, 32_768, execution="lockstep", layout="tp4.pp2")
    plan = planner.plan([20_000, 9_000, *[900] * 40])
    assert "  of Σ micro-steps + 1 × the longest, which may be above the" in explain(plan)
    assert simulate_plan_ms(plan, profile.forward_fraction) <= plan.predicted_ms
