"""Micro-steps that go through stages: what they cost, near the optimum, and never below it."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.micro_steps import least_micro_steps_ms

from seqplan import Batch, Scheme
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.micro_step_bounds import (
    in_stages_ms,
    micro_steps_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import prove_micro_steps
from seqplan.planner.simulation.one_f_one_b import simulate_ms
from seqplan.planner.simulation.timeline import pipelines_timeline, simulate_plan_ms
from seqplan.plans.lint import lint
from seqplan.plans.plan import Provenance

PLANNER = Provenance("0", 0, "sha256:0", None)

Case = tuple[list[SchemeModel], Batch, int]


@st.composite
def staged_micro_steps(draw: st.DrawFn) -> Case:
    """Few sequences on one or two tp ranks × up to three stages, several degrees."""
    stages, tp = draw(st.integers(2, 3)), draw(st.sampled_from([1, 2]))
    groups = draw(st.sampled_from([1, 2, 3, 4]))
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    room = draw(st.integers(-(-max(lengths) // groups), 2 * max(lengths)))
    a, b = draw(st.sampled_from([0.0, 0.02, 0.2])), draw(st.sampled_from([0.3, 1.0]))
    c = draw(st.sampled_from([0.0, 1.0, 12.0]))
    loss, more_c = draw(st.sampled_from([1.0, 1.2])), draw(st.sampled_from([0.0, 3.0, 9.0]))
    degrees = sorted({1, groups, draw(st.integers(1, groups))})
    models = [
        SchemeModel(
            Scheme(tp=tp, pp=stages, ring=degree),
            Latency(a / degree, b / degree * (loss if degree > 1 else 1.0), c + more_c / degree),
            room * degree * 2 * tp,
        )
        for degree in degrees
    ]
    return models, Batch.from_lengths(lengths), groups * tp * stages


@settings(max_examples=40)
@given(staged_micro_steps())
def test_they_lie_between_the_bounds_and_twice_the_optimum(case: Case) -> None:
    models, batch, gpus = case
    stages = models[0].scheme.pp
    micro_steps = plan_micro_steps(batch, models, gpus)
    assert micro_steps is not None
    classes = [stage_class(model) for model in models]
    best = least_micro_steps_ms(classes, batch.lengths, gpus // stages, stages)
    assert micro_steps_bound_ms(classes, batch, gpus // stages, 1, stages) <= best * (1 + 1e-9)
    assert micro_steps.lower_bound_ms <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= micro_steps.objective_ms <= 2 * best


@settings(max_examples=10)
@given(staged_micro_steps())
def test_the_bound_by_micro_step_is_never_above_the_best(case: Case) -> None:
    models, batch, gpus = case
    stages = models[0].scheme.pp
    micro_steps = plan_micro_steps(batch, models, gpus)
    assert micro_steps is not None
    proven = prove_micro_steps(micro_steps, batch)
    classes = [stage_class(model) for model in models]
    best = least_micro_steps_ms(classes, batch.lengths, gpus // stages, stages)
    assert micro_steps.lower_bound_ms <= proven.lower_bound_ms <= best * (1 + 1e-9)


def test_fewer_micro_steps_are_taken_where_more_are_no_multiple() -> None:
    """A micro-step for each of 5 sequences is faster, and 6 cannot be filled."""
    models = [SchemeModel(Scheme(pp=2), Latency(0.0, 0.3, 0.0), 2)]
    micro_steps = plan_micro_steps(Batch(0, tuple(range(5)), (1,) * 5), models, 2, 2)
    assert len(micro_steps.micro_steps) == 4


@settings(max_examples=40)
@given(staged_micro_steps(), st.integers(1, 3))
def test_their_plans_break_no_rule_and_no_simulation_takes_longer(
    case: Case, multiple: int
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


@settings(max_examples=40)
@given(staged_micro_steps())
def test_no_rank_is_idle_where_sequences_are_enough(case: Case) -> None:
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
