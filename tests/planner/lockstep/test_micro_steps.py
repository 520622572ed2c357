"""Micro-steps of one stage: complete, within GPUs and memory, above the bound, near the optimum."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from micro_step_cases import (
    PLANNER,
    MicroStepCase,
    find_least_ms,
    list_models,
    micro_step_cases,
)
from step_lengths import CODE, draw, draw_clipped

from seqplan import Batch, Planner, Scheme, Workload
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.lockstep.assemble import assemble_micro_steps
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    micro_steps_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import Begun, MicroStepsFiller
from seqplan.planner.lockstep.filling.search import _least_rest, _limit
from seqplan.planner.lockstep.plan_micro_steps import (
    list_choices,
    plan_best_choice,
    plan_micro_steps,
)
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.lint import lint


@pytest.mark.parametrize("stages", [(1,), (2, 3)])
@given(st.data())
def test_micro_steps_lie_between_the_bound_and_twice_the_optimum(
    stages: tuple[int, ...], data: st.DataObject
) -> None:
    models, batch, gpus = case = data.draw(micro_step_cases(stages))
    pp = models[0].scheme.pp
    micro_steps = plan_micro_steps(batch, models, gpus)
    assert micro_steps is not None
    best = find_least_ms(case)
    classes = [stage_class(model) for model in models]
    assert micro_steps_bound_ms(classes, batch, gpus // pp, 1, pp) <= best * (1 + 1e-9)
    assert micro_steps.lower_bound_ms <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= micro_steps.objective_ms <= 2 * best


@given(micro_step_cases())
def test_plans_in_lockstep_break_no_rule(case: MicroStepCase) -> None:
    models, batch, gpus = case
    micro_steps = plan_micro_steps(batch, models, gpus)
    plan = assemble_micro_steps(batch, micro_steps, PLANNER, gpus, forward_fraction=1 / 3)
    assert lint(plan, {model.scheme: model for model in models}) == []
    assert abs(plan.predicted_ms - micro_steps.objective_ms) <= 1e-3 * (len(plan.pipelines) + 1)


def test_a_sequence_beyond_every_group_has_no_micro_steps() -> None:
    models = load_shipped("gpt-7b-a100-40gb").usable(8, 32768)
    limit = max(model.max_sequence for model in models)
    assert plan_micro_steps(Batch.from_lengths([limit + 1]), models, 8) is None


def test_static_groups_are_never_better() -> None:
    """One degree throughout is among the plans tried, so choosing freely cannot lose to it."""
    models = load_shipped("gpt-7b-a100-40gb").usable(64, 32768)
    lengths = [16854, 11771, 9270, 8711, 6586, 5810, 5614, 5258] + [900] * 350
    free = plan_micro_steps(Batch.from_lengths(lengths), models, 64)
    assert free is not None
    for model in models:
        static = plan_micro_steps(Batch.from_lengths(lengths), [model], 64)
        assert static is None or free.objective_ms <= static.objective_ms * (1 + 1e-9)


def test_micro_steps_that_hold_nothing_end_the_search() -> None:
    """Micro-steps after the last full one may take 0 ms if micro-steps cost nothing themselves."""

    class Counting(MicroStepsFiller):
        fills = 0

        def fill(
            self, targets_ms: Sequence[float], begun: Begun | None = None
        ) -> FilledMicroSteps | None:
            self.fills += 1
            return super().fill(targets_ms, begun)

    degree = PipelineClass(1, 0.0, 0.3, 0.0, 100, 1, 1, 1)
    filler = Counting([degree], Sequences(np.array([10, 7]), np.array([1, 1])), 2)
    for shape in ([1.0, 1.0], [3.0, 0.5]):
        filler.fills = 0
        start = FilledMicroSteps(((), (), ()), (3.0, 3.0, 3.0))
        limit_ms = _limit(start.total_ms, [3.0], shape, 1)
        best = _least_rest(filler, filler.begin([]), 3.0, shape, start, limit_ms)
        assert best.total_ms == 3.0
        assert filler.fills < 20


@given(micro_step_cases())
def test_thrifty_micro_steps_hold_everything(case: MicroStepCase) -> None:
    models, batch, gpus = case
    classes = [PipelineClass.from_model(model, 1) for model in reversed(models)]
    filler = MicroStepsFiller(classes, Sequences(batch.distinct, batch.multiplicity), gpus)
    least_waste = filler.fill_with_least_waste()
    positions = [
        place for groups in least_waste.groups(batch) for _, members in groups for place in members
    ]
    assert sorted(positions) == list(range(len(batch.lengths)))
    beyond = MicroStepsFiller(
        [replace(classes[0], gpus=gpus + 1)], Sequences(batch.distinct, batch.multiplicity), gpus
    )
    assert beyond.fill_with_least_waste() is None


@pytest.mark.parametrize(("layout", "gap"), [((4, 1), 0.04), ((4, 2), 0.03), ((8, 2), 0.02)])
def test_many_unlike_micro_steps_are_near_their_bound(layout: tuple[int, int], gap: float) -> None:
    """Long and short micro-steps of code, each with its target; with stages the longest counts."""
    models = list_models("llama-32b-a800-80gb", 64, 32768, layout)
    lengths = np.minimum(CODE, 32768)[:300].tolist()
    micro_steps = plan_micro_steps(Batch.from_lengths(lengths), models, 64)
    assert micro_steps.objective_ms <= micro_steps.lower_bound_ms * (1 + gap)


def test_equal_groups_are_chosen_with_their_overhead() -> None:
    """Of equal sizes, less work does not pay for a large overhead."""
    models = [
        SchemeModel(Scheme(ulysses=2), Latency(0.0, 1.0, 400.0), 4_096),
        SchemeModel(Scheme(ring=2), Latency(0.0, 1.1, 10.0), 4_096),
    ]
    batch = Batch.from_lengths([500, 400, 300, 200] * 2)
    micro_steps = plan_micro_steps(batch, models, 4)
    alone = [plan_micro_steps(batch, [model], 4) for model in models]
    assert micro_steps.objective_ms == min(plan.objective_ms for plan in alone if plan)


def test_the_bound_counts_the_micro_steps_of_groups_that_hold_few_tokens() -> None:
    """A mode that keeps all is faster and holds a tenth: 16 micro-steps, or 2 that recompute."""
    ranks, batch = 2, Batch.from_lengths([10] * 64)
    light = PipelineClass(1, 0.0, 1.0, 5.0, 20, 1, 1, 1)
    full = PipelineClass(1, 0.0, 1.4, 5.0, 200, 1, 1, 1)
    of_light, of_full = 64 * 10 / 2 + 16 * 5, 64 * 10 * 1.4 / 2 + 2 * 5
    bound_ms = micro_steps_bound_ms([light, full], batch, ranks, 2)
    assert bound_ms <= min(of_light, of_full)
    assert bound_ms == pytest.approx(of_light)


def test_the_bound_counts_larger_overheads_of_smaller_groups() -> None:
    """Half of the ranks' memory: one micro-step, in which tokens pay half of the difference."""
    small = PipelineClass(1, 0.0, 1.0, 30.0, 100, 1, 1, 1)
    large = PipelineClass(1, 0.0, 0.6, 10.0, 200, 1, 1, 2)
    bound_ms = micro_steps_bound_ms([small, large], Batch.from_lengths([10] * 10), 2, 1)
    assert bound_ms == pytest.approx(min(50 + 10 + 0.5 * 20, 60 + 10))
    assert bound_ms <= min(50 + 30, 60 + 10)


def test_lockstep_of_several_modes_is_near_its_bound() -> None:
    planner = Planner.from_profile("qwen3-32b-h100-80gb", 16, 32_768, execution="lockstep")
    assert planner.plan(draw(300_000, 1)).gap < 0.01


def test_groups_run_the_fastest_scheme_of_their_size() -> None:
    """A ring of 64 GPUs takes 131,072 tokens in 7.1 s, Ulysses in 7.8 s but shorter ones faster."""
    planner = Planner.from_profile(
        "llama-32b-a800-80gb", 64, 131_072, layout="tp8", sync=None, execution="lockstep"
    )
    models = Workload(64, 131_072, 131_072).models(load_shipped("llama-32b-a800-80gb"))
    short = np.random.default_rng(0).integers(500, 9_000, 120).tolist()
    plan = planner.plan([131_072, 131_072, 35_000, 30_000, *short])
    assert plan.gap < 0.03
    assert lint(plan, models) == []
    for pipeline in plan.pipelines:
        lengths = [plan.lengths[i] for i in pipeline.micro_batches[0].sequences]
        fastest = min(
            model.latency.micro_batch_ms(lengths)
            for scheme, model in models.items()
            if (scheme.tp, scheme.pp, scheme.gpus) == (8, 1, pipeline.scheme.gpus)
            and model.max_len >= pipeline.scheme.pad_micro_batch(lengths)
        )
        assert pipeline.micro_batches[0].cost_ms == pytest.approx(fastest, abs=1e-3)


def test_two_micro_steps_divide_long_sequences() -> None:
    """Filled in turn, the first takes them all, and short ones fill up its large groups."""
    planner = Planner.from_profile(
        "llama-32b-a800-80gb", 64, 32_768, sync=None, execution="lockstep"
    )
    plan = planner.plan(draw_clipped(200_000, 2))
    assert plan.gap < 0.016  # 3.6 % if they are filled in turn


@pytest.mark.parametrize(("layout", "multiple"), [((2, 1), 1), ((2, 1), 4), ((2, 2), 1)])
def test_choices_that_are_not_searched_are_no_better(
    layout: tuple[int, int], multiple: int
) -> None:
    """The best of all modes is that of each searched alone, the first of equal ones."""
    models = list_models("llama3-8b-h100-80gb", 16, 16_384, layout)
    choices = list_choices(models)
    assert len(choices) > 2
    lengths = np.random.default_rng(0).choice(np.minimum(CODE, 16_384), 80).tolist()
    batch = Batch.from_lengths(lengths)
    alone = [
        planned
        for choice in choices
        if (planned := plan_best_choice(batch, models, [choice], 16, multiple))
    ]
    best = min(alone, key=lambda planned: planned.micro_steps.objective_ms)
    together = plan_best_choice(batch, models, choices, 16, multiple)
    assert together is not None
    assert together.micro_steps == best.micro_steps
    assert together.near[:1] == best.near
