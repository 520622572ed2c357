"""Steps whose experts are split over ranks: bounds by enumeration, plans, and their proposal."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from expert_profiles import make_expert_profile
from hypothesis import given, settings
from hypothesis import strategies as st
from step_lengths import CODE, check_plan

from seqplan import (
    Batch,
    Cost,
    Infeasible,
    Mode,
    Planner,
    Proposal,
    Scheme,
    StepPlanner,
    Workload,
    make_proposal,
    to_json,
)
from seqplan.api.cli.propose import proposal_lines
from seqplan.costs.latency import Latency
from seqplan.costs.recomputation_mode import ModeModel
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.expert_sharing import expert_bound_ms
from seqplan.planner.bounds.gpu_time import gpu_time_bound_ms
from seqplan.planner.errors import OptionError
from seqplan.planner.experts import leveling
from seqplan.planner.experts.component_planner import ComponentPlanner
from seqplan.planner.experts.components import plan_components
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.proposal.make_proposal import _SAMPLE_SEED
from seqplan.planner.proposal.scheme_filter import SchemeFilter
from seqplan.planner.simulation.timeline import plan_timeline, simulate_plan_ms
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.sync.choice import choose_sync
from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, PlannedPipeline
from seqplan.plans.schedule import schedule

RANKS, DEGREE, CAPACITY = 4, 2, 12
MODELS = [
    SchemeModel(Scheme(ulysses=1), Latency(0.02, 1.0, 1.0, 0.6), CAPACITY),
    SchemeModel(Scheme(ulysses=2), Latency(0.011, 0.55, 1.2, 0.3), 2 * CAPACITY),
    SchemeModel(Scheme(ulysses=4), Latency(0.006, 0.3, 1.5, 0.15), 4 * CAPACITY),
]
MODED = [
    replace(
        model,
        modes=(
            ModeModel("none", model.latency, model.max_len // 2),
            ModeModel("full", replace(model.latency, b=1.3 * model.b, c=3.0), model.max_len),
        ),
        latency=replace(model.latency, b=1.3 * model.b, c=3.0),
    )
    for model in MODELS
]
SLOTS = [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,)), (1, (0, 1)), (1, (2, 3)), (2, (0, 1, 2, 3))]
"""Groups of four ranks in two blocks: model and ranks."""


def find_optimum_ms(
    lengths: tuple[int, ...], steps: int, models: Sequence[SchemeModel] = MODELS
) -> float:
    """Enumerate every plan of up to ``steps`` micro-steps on two blocks; the least time (ms)."""
    best = inf
    for places in product(product(range(steps), range(len(SLOTS))), repeat=len(lengths)):
        held: dict[tuple[int, int], list[int]] = {}
        for length, place in zip(lengths, places, strict=True):
            held.setdefault(place, []).append(length)
        used = [(step, rank) for step, slot in held for rank in SLOTS[slot][1]]
        if len(set(used)) < len(used):
            continue
        pipelines = []
        for (_, slot), group in sorted(held.items()):
            model, ranks = models[SLOTS[slot][0]], SLOTS[slot][1]
            if sum(group) > model.max_sequence:
                break
            latencies = [mode.latency for mode in model.modes if sum(group) <= mode.max_len]
            cost = min(of.micro_batch_ms(group) for of in latencies or [model.latency])
            whole = len(ranks) >= DEGREE
            shared = 0.0 if whole else model.b_shared * sum(group)
            micro = MicroBatch((), sum(group), sum(group), cost, shared_ms=shared)
            pipelines.append(PlannedPipeline(model.scheme, ranks, (micro,), cost))
        else:
            best = min(best, schedule(pipelines, expert_parallel=DEGREE).makespan_ms)
    return best


@pytest.mark.parametrize("models", [MODELS, MODED], ids=["one mode", "two modes"])
@settings(max_examples=12)
@given(lengths=st.lists(st.integers(1, 14), min_size=1, max_size=3).map(tuple))
def test_bound_and_plan_against_every_plan(
    models: list[SchemeModel], lengths: tuple[int, ...]
) -> None:
    batch = Batch.from_lengths(list(lengths))
    optimum = find_optimum_ms(lengths, 2, models)
    assert expert_bound_ms(models, DEGREE, batch, RANKS) <= optimum + 1e-9
    assert plan_components(batch, models, RANKS, DEGREE) is not None


def test_components_that_the_choices_of_the_first_do_not_hold_are_searched_anew() -> None:
    """One sequence that no group holds without recomputation, after a component that needs none."""
    batch = Batch.from_lengths([2, 2, CAPACITY + 1])
    planner = ComponentPlanner(batch, MODED, [DEGREE, DEGREE], DEGREE)
    components = planner.plan_parts([(0, 1), (2,)])
    assert components is not None
    assert components[1].time_ms == pytest.approx(MODED[1].latency.micro_batch_ms([CAPACITY + 1]))


def test_blocks_run_whole_micro_steps() -> None:
    """Two blocks of equal sequences need two micro-steps, or recompute: 1.7 by tokens alone."""
    batch = Batch.from_lengths([5] * 8)
    models = [replace(MODED[0], modes=(MODED[0].modes[0],), latency=MODED[0].modes[0].latency)]
    work = 8 * models[0].latency.micro_batch_ms([5]) - 8 * models[0].c
    assert models[0].modes[0].max_len < 2 * 5
    bound = expert_bound_ms([replace(models[0], max_len=6)], DEGREE, batch, RANKS)
    assert bound == pytest.approx(work / RANKS + 2 * models[0].c, rel=2e-3)
    both = expert_bound_ms(MODED[:1], DEGREE, batch, RANKS)
    recomputed = (work + 0.3 * 8 * 5) / RANKS + 3.0
    assert work / RANKS + 1.7 * models[0].c < both <= min(bound, recomputed) + 1e-9


def test_full_costs_of_one_pipeline_are_no_bound() -> None:
    """An error that the enumeration catches: a block's other rank takes a part of the work."""
    batch = Batch.from_lengths([12])
    models = MODELS[:1]
    classes = [PipelineClass.from_model(model, 1) for model in models]
    alone = MicroBatch((), 12, 12, 15.88, shared_ms=7.2)
    pipeline = PlannedPipeline(Scheme(), (0,), (alone,), 15.88)
    reached = schedule([pipeline], expert_parallel=DEGREE).makespan_ms
    assert gpu_time_bound_ms(classes, batch, RANKS) > reached
    assert expert_bound_ms(models, DEGREE, batch, RANKS) == pytest.approx(reached, rel=1e-6)


GPUS, CONTEXT, TOKENS = 8, 16384, 150_000
LENGTHS = np.random.default_rng(3).lognormal(7, 1.1, 4000).astype(int).clip(16, CONTEXT)
WORKLOAD = Workload(gpus=GPUS, max_len=CONTEXT, tokens=TOKENS)


def draw_batch() -> Batch:
    return next(iter(Sampler(LENGTHS, TOKENS, CONTEXT, 5).batches(1)))


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("execution", ["static", "regroup", "lockstep"])
def test_plans_are_sound_and_proven(degree: int, execution: str) -> None:
    profile = make_expert_profile({degree: 0.4}).keep_modes({"none", "full"})
    problem = PlanningProblem(
        profile=profile,
        workload=WORKLOAD,
        sync=choose_sync(profile, GPUS),
        execution=execution,  # type: ignore[arg-type]
    )
    batch = draw_batch()
    plan = StepPlanner(problem).plan(batch)
    assert plan.expert_parallel == degree
    check_plan(plan, problem.models)
    assert simulate_plan_ms(plan, profile.forward_fraction) <= plan.predicted_ms + 1e-2
    ends = [
        event.end_ms
        for placed in plan_timeline(plan, profile.forward_fraction).pipelines
        for event in placed.events
    ]
    assert max(ends) <= plan.predicted_ms + 1e-2
    assert StepPlanner(problem).prove(plan).gap == plan.gap
    if execution == "regroup":
        assert plan.gap < 0.06
    assert to_json(StepPlanner(problem).plan(batch)) == to_json(plan)


@pytest.mark.parametrize(
    ("degree", "gpus", "execution", "seed"), [(4, 8, "static", 0), (4, 12, "uniform", 13)]
)
def test_bounds_of_whole_blocks_are_proven_without_smaller_groups(
    degree: int, gpus: int, execution: str, seed: int
) -> None:
    """Candidates of whole blocks next to a plan of smaller groups, which take less."""
    drawn = np.random.default_rng(seed).lognormal(7, 1.1, 50).astype(int).clip(16, CONTEXT)
    problem = PlanningProblem(
        profile=make_expert_profile({degree: 0.4}),
        workload=Workload(gpus, CONTEXT, int(drawn.sum())),
        sync=None,
        execution=execution,  # type: ignore[arg-type]
    )
    plan = StepPlanner(problem).plan(Batch.from_lengths(drawn.tolist()))
    assert plan.selection
    assert list(find_unproven(plan, problem.models)) == []


def test_components_beat_whole_blocks_if_sequences_are_short() -> None:
    """Eight ranks of one block, each with sequences of its share, need no groups of eight."""
    profile = make_expert_profile({GPUS: 0.4})
    problem = PlanningProblem(profile=profile, workload=WORKLOAD, sync=None, execution="regroup")
    planner = StepPlanner(problem)
    plan = planner.plan(draw_batch())
    whole = StepPlanner(replace(problem, whole_blocks=True)).plan(draw_batch())
    assert any(pipeline.scheme.gpus < GPUS for pipeline in plan.pipelines)
    assert plan.predicted_ms < whole.predicted_ms
    assert planner.prove(plan) == plan


def test_components_of_pipelines_are_planned_anew() -> None:
    """Pipelines planned by themselves meet in uneven micro-steps: 4.3 % above the bound."""
    profile = load_shipped("qwen3-30b-a3b-h100-80gb").at_expert_parallel(8)
    profile = profile.keep_schemes({s.scheme for s in profile.schemes if s.scheme.tp == 4})
    workload = Workload(32, 32_768, 400_000)
    problem = PlanningProblem(profile=profile, workload=workload, sync=None, execution="regroup")
    batch = next(iter(Sampler(np.minimum(CODE, 32_768), 400_000, 32_768, 0).batches(1)))
    plan = StepPlanner(problem).plan(batch)
    assert plan.gap < 0.03
    check_plan(plan, problem.models)


def test_sequences_move_from_the_slowest_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """All components together were 1.9 % less even."""
    profile = load_shipped("qwen3-30b-a3b-h100-80gb").at_expert_parallel(8)
    profile = profile.keep_schemes({s.scheme for s in profile.schemes if s.scheme.tp == 4})
    workload = Workload(32, 32_768, 200_000)
    problem = PlanningProblem(profile=profile, workload=workload, sync=None, execution="regroup")
    batch = next(iter(Sampler(np.minimum(CODE, 32_768), 200_000, 32_768, 3).batches(1)))
    plan = StepPlanner(problem).plan(batch)
    assert lint(plan, problem.models) == []
    monkeypatch.setattr(leveling, "PAIRS", 0)
    assert plan.predicted_ms < 0.985 * StepPlanner(problem).plan(batch).predicted_ms


@settings(max_examples=20)
@given(weights=st.lists(st.integers(1, 50), min_size=2, max_size=9), room=st.integers(1, 40))
def test_a_pair_differs_by_about_the_room(weights: list[int], room: int) -> None:
    half = len(weights) // 2
    here, there = range(half), range(half, len(weights))
    heavy, light = leveling.select_pair(here, there, np.array(weights, float), room)
    assert heavy in here
    assert light in there
    least = min(abs(weights[i] - weights[j] - room) for i in here for j in there)
    assert abs(weights[heavy] - weights[light] - room) == least


def test_lockstep_with_modes_is_no_slower_than_with_one_of_them() -> None:
    profile = load_shipped("qwen3-30b-a3b-h100-80gb").at_expert_parallel(8)
    batch = next(iter(Sampler(CODE, 200_000, 16_384, 0).batches(1)))
    workload, times = Workload(32, 16_384, 200_000), []
    for of_modes in (profile, profile.keep_modes({"none"})):
        problem = PlanningProblem(
            profile=of_modes, workload=workload, sync=None, execution="lockstep"
        )
        times.append(StepPlanner(problem).plan(batch).predicted_ms)
    assert times[0] <= times[1]


def test_a_proposal_weighs_layouts_of_groups_smaller_than_a_block() -> None:
    """Whole blocks of 8 ranks are tp8, groups of 4 ranks are faster."""
    profile = load_shipped("qwen3-30b-a3b-h100-80gb").at_expert_parallel(8)
    profile = profile.keep_schemes({Scheme(tp=4), Scheme(tp=8)})
    lengths = np.minimum(CODE, 8192)
    proposal = make_proposal(profile, Workload(24, 8192, 100_000), lengths)
    assert proposal.layouts.chosen == "tp4"
    assert proposal.candidates[0].strategy.counts[0][0] == Scheme(tp=8)
    plan = StepPlanner(proposal).plan(next(iter(Sampler(lengths, 100_000, 8192, 0).batches(1))))
    assert {pipeline.scheme for pipeline in plan.pipelines} == {Scheme(tp=4)}
    assert Proposal.from_json(proposal.to_json(), "again") == proposal


def test_a_proposal_weighs_the_degrees() -> None:
    modes = {"none", "full"}
    profile = make_expert_profile({2: 0.3, 8: 0.4}, slower={8: 1.05}).keep_modes(modes)
    workload = replace(WORKLOAD, tokens=12_500)
    proposal = make_proposal(profile, workload, LENGTHS)
    chosen = proposal.profile.expert_parallel
    rows = {row.expert_parallel: row for row in proposal.experts}
    assert set(rows) == {2, 8}
    assert rows[chosen].expected_ms == min(row.expected_ms or inf for row in rows.values())
    left_out = rows[2 if chosen == 8 else 8]
    assert (left_out.lower_bound_ms or 0.0) >= (rows[chosen].expected_ms or inf)
    assert rows[8].longest > rows[2].longest
    assert Proposal.from_json(proposal.to_json(), "proposal") == proposal
    judged = Sampler(LENGTHS, 12_500, workload.max_len, _SAMPLE_SEED).batches(proposal.judged)
    planner = StepPlanner(proposal, PlanningOptions(prove=False))
    plans = [planner.plan(batch) for batch in judged]
    steps_ms = np.mean([plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans])
    assert proposal.lower_bound_ms <= proposal.expected_ms == pytest.approx(steps_ms, rel=0.01)
    text = "\n".join(proposal_lines(proposal))
    assert "seqplan compare has the best static run" in text
    assert "that will do" not in text
    assert f"Experts on {chosen} ranks:" in text
    assert "at least +" in text
    both = make_expert_profile({2: 0.3, 4: 0.3}, slower={4: 1.01}).keep_modes({"full"})
    four_gpus = replace(workload, gpus=4, tokens=6_000)
    equal = make_proposal(both, four_gpus, LENGTHS, sync=None)
    assert None not in [row.expected_ms for row in equal.experts]
    syncs = [choose_sync(both.at_expert_parallel(degree), 4) for degree in (2, 4)]
    assert syncs[0].whole_ms([(1, 1)]) > syncs[1].whole_ms([(1, 1)])
    assert "of it sync, longest" in "\n".join(proposal_lines(equal)).replace("\n", " ")


def test_bad_input_is_named() -> None:
    profile = make_expert_profile({4: 0.4})
    workload = Workload(gpus=6, max_len=CONTEXT, tokens=TOKENS)
    with pytest.raises(Infeasible, match="experts on 4 ranks: 4 does not divide 6 GPUs"):
        make_proposal(profile, workload, LENGTHS)
    problem = PlanningProblem(profile=profile, workload=WORKLOAD, sync=None, execution="static")
    for options in (
        PlanningOptions(exact=True),
        PlanningOptions(robust=0.1),
        PlanningOptions(slowdown=((1, 2.0),)),
    ):
        with pytest.raises(OptionError, match="experts are not split"):
            StepPlanner(problem, options)


def test_a_filter_chooses_the_degree() -> None:
    profile = make_expert_profile({2: 0.3, 8: 0.4})
    assert SchemeFilter.parse(["ep8"]).apply(profile).expert_parallel == 8
    with pytest.raises(ValueError, match="has no expert_parallel 4, only 2, 8"):
        SchemeFilter.parse(["ep4"]).apply(profile)
    with pytest.raises(ValueError, match="must have one degree of experts: ep2, ep8"):
        SchemeFilter.parse(["ep2", "ep8"])
    with pytest.raises(ValueError, match="must have one layout: tp4, tp2"):
        SchemeFilter.parse(["tp4", "tp2"])
    with pytest.raises(ValueError, match=r"layout must be tp and pp, as tp4\.pp2: 'pp2\.r3'"):
        SchemeFilter.parse(["pp2", "pp2.r3"])
    assert SchemeFilter.parse(["tp4", "ep8", "tp4"]) == SchemeFilter.parse(["tp4", "ep8"])
    with pytest.raises(ValueError, match="has expert_parallel 2, 8"):
        Planner.from_profile(profile, gpus=GPUS, max_len=CONTEXT)
    planner = Planner.from_profile(profile, gpus=GPUS, max_len=CONTEXT, expert_parallel=8)
    assert planner.plan([900, 700, 1200]).expert_parallel == 8


def test_costs_are_of_the_named_degree() -> None:
    profile = make_expert_profile({1: 0.0, 8: 0.4}, slower={8: 1.5})
    whole, split = (Cost.from_profile(profile, "tp1", degree) for degree in (None, 8))
    assert split.b == pytest.approx(1.5 * whole.b)
    modes = Mode.list_from_profile(profile, "tp1", GPUS, expert_parallel=8)
    assert modes[-1].cost.b == pytest.approx(split.b)
    with pytest.raises(ValueError, match="has no expert_parallel 4, only 1, 8"):
        Cost.from_profile(profile, "tp1", 4)


def test_an_even_number_of_micro_steps_is_in_order() -> None:
    """The second of two micro-steps has two sequences, and the first leaves more ranks idle."""
    planner = Planner.from_profile(
        "qwen3-30b-a3b-h200-141gb",
        48,
        32_768,
        execution="lockstep",
        micro_step_multiple=2,
        expert_parallel=16,
        layout="tp1",
        sync=None,
    )
    plan = planner.plan([42, 51, 38])
    assert lint(plan, None) == []
    assert [pipeline.micro_step for pipeline in plan.pipelines] == [0, 1, 1]
