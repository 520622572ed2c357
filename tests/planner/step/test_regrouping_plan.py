"""Groups that regroup within the step: sound, never slower, and bounded from below."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.regrouping import best_on_two_ranks
from step_lengths import CODE

import seqplan
from seqplan import (
    Batch,
    Plan,
    Profile,
    Proposal,
    Scheme,
    StepPlanner,
    Strategy,
    Workload,
    explain,
    make_proposal,
    rank_view,
    to_json,
)
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.placement.assembly import assemble
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.regroup_planner import (
    REFORMING_GAIN,
    assemble_regrouping,
    find_regroup_layouts,
    with_regrouping,
)
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.regrouping import (
    RegroupFiller,
    RegroupLayout,
    find_nested_sizes,
    find_regrouping,
    make_regroup_layouts,
)
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import NO_SYNC
from seqplan.plans.lint import lint
from seqplan.plans.plan import Provenance
from seqplan.plans.schedule import schedule

PLANNER = Provenance("1", 0, "sha256:p", None)

Models = dict[Scheme, SchemeModel]


@st.composite
def one_layout(
    draw: st.DrawFn,
    tps: Sequence[int] = (1, 2),
    sps: Sequence[tuple[int, ...]] = ((1,), (1, 2), (1, 2, 4), (1, 4), (2, 4), (1, 3, 6)),
) -> Models:
    """Schemes of one layout whose GPU counts divide one another, memory tight or ample."""
    tp, token_room = draw(st.sampled_from(tps)), draw(st.integers(40, 400))
    models = {}
    for sp in draw(st.sampled_from(sps)):
        ring = draw(st.sampled_from([r for r in (1, 2, 3) if sp % r == 0]))
        scheme = Scheme(tp, 1, sp // ring, ring)
        slower = draw(st.sampled_from([1.0, 1.1, 1.4])) ** sp
        latency = Latency(
            draw(st.sampled_from([0.0, 1e-4, 1e-2])) * slower / sp,
            draw(st.sampled_from([0.05, 0.3])) * slower / sp,
            draw(st.sampled_from([0.0, 0.5, 4.0])),
        )
        models[scheme] = SchemeModel(scheme, latency, token_room * scheme.gpus)
    return models


def of_models(models: Models) -> RegroupLayout:
    """All of the schemes, also those that others replace."""
    first = next(iter(models))
    classes = tuple(PipelineClass.from_model(model, 1) for model in models.values())
    return RegroupLayout((first.tp, first.pp), tuple(models), classes, 0.0)


def static_plan(models: Models, batch: Batch, gpus: int) -> Plan | None:
    """The best plan of the homogeneous strategies that hold the batch."""
    strategies = [
        Strategy.from_counts({scheme: gpus // scheme.gpus})
        for scheme, model in models.items()
        if scheme.gpus <= gpus and model.max_sequence >= batch.longest
    ]
    if not strategies:
        return None
    return assemble(batch, select(batch, strategies, models, gpus), PLANNER, gpus, 1 / 3)


def check(plan: Plan, models: Models) -> None:
    """Everything that a regrouping plan must be; lint has most of it."""
    assert lint(plan, models) == []
    assert plan.lower_bound_ms <= plan.predicted_ms
    assert plan.predicted_ms >= schedule(plan.pipelines).makespan_ms - 1e-6
    assert simulate_plan_ms(plan) <= plan.predicted_ms + 1e-6
    # The order is that of the planned starts: nothing waits that was not planned to.
    starts = schedule(plan.pipelines).start_ms
    assert all(later >= earlier - 0.01 for earlier, later in pairwise(starts))
    busy: dict[int, float] = {}
    for pipeline, start in zip(plan.pipelines, starts, strict=True):
        first, gpus = pipeline.ranks[0], pipeline.scheme.gpus
        assert pipeline.ranks == tuple(range(first, first + gpus))
        assert first % gpus == 0
        for rank in pipeline.ranks:
            assert start >= busy.get(rank, 0.0) - 1e-6
            busy[rank] = start + pipeline.predicted_ms
    for rank in range(plan.world_size):
        rank_view(plan, rank)


@settings(max_examples=53)
@given(
    models=one_layout(),
    gpus=st.integers(1, 14),
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=30),
    looseness=st.sampled_from([1.01, 1.3, 4.0]),
    packing=st.sampled_from(["tight", "even"]),
)
def test_regrouping_plans_are_sound(
    models: Models, gpus: int, lengths: list[int], looseness: float, packing: str
) -> None:
    models = {s: model for s, model in models.items() if s.gpus <= gpus}
    batch = Batch.from_lengths(lengths)
    static = static_plan(models, batch, gpus) if models else None
    assume(static is not None)
    schemes = of_models(models)
    below = static.predicted_ms * looseness
    placed = find_regrouping(schemes.classes, batch, gpus, below, seed=3)
    assert placed == find_regrouping(schemes.classes, batch, gpus, below, seed=3)
    if placed is not None:
        assert placed.objective_ms < below
        bound = gpu_time_bound_ms(schemes.classes, batch, gpus)
        assert placed.objective_ms >= bound * (1 - 1e-9)
        plan = assemble_regrouping(placed, static, batch, schemes, packing)
        check(plan, models)
        assert plan.predicted_ms == pytest.approx(placed.objective_ms, rel=1e-6, abs=0.01)
    chosen = with_regrouping(static, batch, [schemes], models, 3, packing)
    if chosen is not static:
        check(chosen, models)
        assert chosen.predicted_ms * (1 + REFORMING_GAIN) < static.predicted_ms + 1e-9


@given(
    models=one_layout(tps=(1,), sps=((1,), (2,), (1, 2))),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4),
)
def test_the_bound_is_below_every_plan_there_is(models: Models, lengths: list[int]) -> None:
    classes = of_models(models).classes
    batch = Batch.from_lengths(lengths)
    optimum = best_on_two_ranks(classes, lengths)
    assert gpu_time_bound_ms(classes, batch, 2) <= optimum * (1 + 1e-12)
    if optimum == float("inf"):
        return
    placed = find_regrouping(classes, batch, 2, below_ms=4 * optimum)
    assert placed.objective_ms >= optimum * (1 - 1e-9)


def test_a_long_sequence_on_all_ranks_that_then_split() -> None:
    """One sequence that only all four ranks hold, and many short ones."""
    models = {
        Scheme(1, 1, sp): SchemeModel(Scheme(1, 1, sp), Latency(0.0, b, 1.0), 100 * sp)
        for sp, b in ((1, 1.2), (2, 0.72), (4, 0.45))
    }
    batch = Batch.from_lengths([390, *[90] * 8])
    schemes = of_models(models)
    placed = find_regrouping(schemes.classes, batch, 4, below_ms=1e6)
    # 390 tokens on four ranks, 176.5 ms, then two micro-batches of 109 ms on each of them.
    assert placed.objective_ms == pytest.approx(176.5 + 2 * 109, rel=1e-9)
    assert [run.first for run in placed.runs] == [0, 0, 1, 2, 3]
    static = static_plan(models, batch, 4)
    assert static is not None
    plan = with_regrouping(static, batch, [schemes], models, 0)
    assert plan.predicted_ms == pytest.approx(394.5)
    assert "ranks regroup within the step" in explain(plan)


def test_a_time_that_one_sequence_takes_alone_is_gone_below() -> None:
    """The cheapest class that ends by then takes all of it, others do not."""
    models = {
        Scheme(1, 1, sp): SchemeModel(Scheme(1, 1, sp), Latency(0.0, b, 1.0), 1000)
        for sp, b in ((1, 1.0), (2, 0.6), (4, 0.4))
    }
    schemes, batch = of_models(models), Batch.from_lengths([400])
    for alone_ms in (401.0, 241.0):
        placed = find_regrouping(schemes.classes, batch, 4, below_ms=alone_ms)
        assert placed.objective_ms == pytest.approx(161.0)


def test_equal_sequences_left_over_share_ranks() -> None:
    """Forty of one length on sixteen GPUs: two on each, then eight on two GPUs each."""
    profile = "llama-7b-a800-80gb"
    planned, in_lockstep = (
        seqplan.Planner.from_profile(profile, 16, 16_384, layout="tp1", execution=execution).plan(
            [4388] * 40
        )
        for execution in ("regroup", "lockstep")
    )
    assert planned.regroups
    assert "ranks regroup" in explain(planned)
    assert not any(pipeline.micro_step for pipeline in planned.pipelines)
    assert planned.predicted_ms <= in_lockstep.predicted_ms
    check(planned, Workload(16, 16_384, 16_384).models(load_shipped(profile)))


def test_micro_steps_of_the_same_groups_do_not_regroup() -> None:
    planner = seqplan.Planner.from_profile(
        "llama-7b-a800-80gb", 8, 16_384, layout="tp2", execution="lockstep"
    )
    text = explain(planner.plan([8_000] * 16))
    assert "micro-steps" in text
    assert "regroup" not in text


def test_sizes_that_do_not_divide_one_another_are_not_offered() -> None:
    models = {
        Scheme(1, 1, sp): SchemeModel(Scheme(1, 1, sp), Latency(0.0, 1.0 / sp, 1.0), 100)
        for sp in (2, 3)
    }
    classes = of_models(models).classes
    assert find_nested_sizes(classes) is None
    with pytest.raises(ValueError, match="divide one another"):
        RegroupFiller(classes, Batch.from_lengths([5]), 6)


@cache
def long_code() -> Proposal:
    """LLaMA-32B at tp8 on 64 GPUs, code lengths up to 128K."""
    whole = load_shipped("llama-32b-a800-80gb")
    raw = [
        entry
        for entry in whole.document["schemes"]
        if entry.get("tp", 1) == 8 and entry.get("pp", 1) == 1 and entry.get("ring", 1) == 1
    ]
    profile = Profile.from_document({**whole.document, "schemes": raw}, "tp8")
    workload = Workload(64, 131_072, 800_000)
    return make_proposal(profile, workload, CODE, sync=choose_sync(profile, 64))


def test_long_code_gains_by_groups_that_regroup() -> None:
    document = long_code()
    assert document.layouts.chosen == "tp8"
    planner, static_planner = (
        StepPlanner(document),
        StepPlanner(document, PlanningOptions(execution="static")),
    )
    gains = []
    for batch in Sampler(CODE, 800_000, 131_072, 0).batches(4):
        static, plan = static_planner.plan(batch), planner.plan(batch)
        assert lint(plan, planner.problem.models) == []
        assert plan.sync_ms == static.sync_ms
        assert to_json(plan) == to_json(StepPlanner(document).plan(batch))
        if plan.predicted_ms == static.predicted_ms:
            assert to_json(plan) == to_json(static)
        else:
            assert plan.predicted_ms * (1 + REFORMING_GAIN) < static.predicted_ms
        assert len({rank for p in static.pipelines for rank in p.ranks}) == static.strategy.gpus
        gains.append(static.predicted_ms / plan.predicted_ms - 1)
    assert max(gains) > 0.03, gains


def test_they_are_offered_where_the_sync_is_weighed_and_groups_may_change() -> None:
    document = long_code()
    (layout,) = find_regroup_layouts(document.problem)
    assert layout.layout == (8, 1)
    fixed = StepPlanner(replace(document, execution="static"))
    assert not fixed.plan(next(iter(Sampler(CODE, 800_000, 131_072, 0).batches(1)))).regroups
    without = make_proposal(document.profile, Workload(16, 8192, 20_000), CODE, sync=None)
    assert find_regroup_layouts(without.problem) == []


def test_only_layouts_without_stages_regroup() -> None:
    models = Workload(64, 131_072, 800_000).models(load_shipped("llama-32b-a800-80gb"))
    layouts = make_regroup_layouts(models, NO_SYNC)
    assert [entry.layout for entry in layouts] == [(4, 1), (8, 1), (16, 1)]
    assert long_code().layouts is not None
    document = replace(long_code(), layouts=replace(long_code().layouts, chosen=None))
    assert [entry.layout for entry in find_regroup_layouts(document.problem)] == [(8, 1)]


def test_a_proposal_counts_the_gain_of_regrouping() -> None:
    document = long_code()
    fixed = make_proposal(
        document.profile, document.workload, CODE, sync=document.sync, execution="static"
    )
    assert document.expected_ms < fixed.expected_ms * 0.97
    assert document.lower_bound_ms <= document.expected_ms
    assert fixed.lower_bound_ms <= fixed.expected_ms
    assert Proposal.from_json(fixed.to_json(), "it").execution == "static"
    assert Proposal.from_json(document.to_json(), "it").execution == "regroup"


def test_with_several_layouts_the_one_that_is_best_for_the_step_regroups() -> None:
    """Code up to 128K, four times the tokens: tp8 in one step, tp4 in another."""
    profile = load_shipped("llama-32b-a800-80gb")
    models = Workload(64, 131_072, 800_000).models(profile)
    sync = choose_sync(profile, 64)
    layouts = make_regroup_layouts(models, sync)
    degrees = set()
    for batch in Sampler(CODE, 800_000, 131_072, 0).batches(4):
        selected = select(batch, [Strategy.parse("1xtp8.u8")], models, 64, sync=sync)
        static = assemble(batch, selected, PLANNER, 64, 1 / 3)
        plan = with_regrouping(static, batch, layouts, models, 0)
        assert lint(plan, models) == []
        total = plan.predicted_ms + plan.sync_ms
        assert total <= static.predicted_ms + static.sync_ms
        if plan is not static:
            degrees.add(plan.pipelines[0].scheme.tp)
            of_plan = sync.compute_exposed_ms([(plan.pipelines[0].scheme.tp, 1)])
            assert plan.sync_ms == round(of_plan, 3)
    assert degrees == {4, 8}
