"""Exact answers against exhaustive optima, and on steps whose gap the search leaves open."""

import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fresh_python import run_python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from instances import Case, assert_sound, fleet, random_case, random_case_with_modes
from oracles.exhaustive import step_optimum
from oracles.regrouping import best_on_two_ranks
from step_lengths import CODE

from seqplan import Batch, Planner, Scheme, Strategy, Workload, find_profile, to_json
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import single_bound_ms
from seqplan.planner.exact.close_gap import EXACT_GAP, close_gap
from seqplan.planner.exact.instance import MOST_SEQUENCES, Instance
from seqplan.planner.exact.model import LEAST_GAIN, ExactSolution, solve
from seqplan.planner.exact.pipeline_model import MOST_FORMED
from seqplan.planner.exact.placement import placement_of
from seqplan.planner.exact.regrouping import close_regrouping_gap
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.fleet import Fleet, PipelineClass
from seqplan.planner.placement.slowdown import make_fleet_of
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.strategies.regrouping import make_regroup_layouts
from seqplan.planner.sync.times import NO_SYNC
from seqplan.plans.lint import lint


def drawn(step: int) -> Batch:
    """A step of code lengths."""
    return next(islice(Sampler(CODE, 200_000, 32_768, 3).batches(step + 1), step, None))


def drain_all(classes: tuple[PipelineClass, ...]) -> tuple[PipelineClass, ...]:
    """Classes whose forward takes no time: then no order ends before form S."""
    return tuple(
        replace(
            k,
            forward_fraction=0.0,
            modes=tuple(replace(mode, forward_fraction=0.0) for mode in k.modes),
        )
        for k in classes
    )


def solved(case: Case, negligible: float, slower: float) -> tuple[float, float, float]:
    """Solve a case to beat what the search finds, made ``slower``; return the least time known,
    the bound and the optimum (ms)."""
    classes, batch = case
    classes = drain_all(classes)
    some = fleet(classes)
    filling = dispatch(Filler(some, batch), single_bound_ms(classes, batch))
    time_ms = filling.objective_ms * slower
    instance = Instance.from_batch(some, batch, time_ms, negligible)
    assert instance is not None
    answer = solve(instance, 0.0, limit=0.5)
    better = placement_of(instance, answer)
    if better is not None:
        assert_sound(some, batch, better)
        time_ms = min(time_ms, better.objective_ms)
    return time_ms, answer.bound_ms, step_optimum(classes, batch)


@pytest.mark.parametrize("seed", range(14))
def test_small_steps_are_solved(seed: int) -> None:
    rng = np.random.default_rng(seed)
    time_ms, bound_ms, optimum = solved(random_case(rng), 0.0, float(rng.choice([1.0, 1.5])))
    assert bound_ms <= optimum * (1 + 1e-9)
    assert bound_ms >= optimum * (1 - 2 * LEAST_GAIN)
    assert optimum * (1 - 1e-9) <= time_ms <= optimum * (1 + 2 * LEAST_GAIN)


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_stages_ends_before_the_bound(seed: int) -> None:
    made, batch = random_case(np.random.default_rng(seed))
    classes = tuple(replace(k, pp=2 + seed % 2) for k in made)
    some = fleet(classes)
    filling = dispatch(Filler(some, batch), single_bound_ms(classes, batch))
    if filling is not None:
        _, bound_ms = close_gap(Placement(some, filling), batch, 0.0, limit=0.5)
        assert bound_ms <= step_optimum(classes, batch, least=True) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(100, 110))
def test_divisible_sequences_keep_the_bound_one(seed: int) -> None:
    time_ms, bound_ms, optimum = solved(random_case(np.random.default_rng(seed)), 0.2, 1.0)
    assert bound_ms <= optimum * (1 + 1e-9)
    assert time_ms >= optimum * (1 - 1e-9)


def test_more_micro_batches_than_aregrouped_are_still_counted() -> None:
    pipeline = PipelineClass(pp=3, a=0.01, b=1.0, c=0.5, capacity=10, unit=1, count=1, gpus=3)
    batch = Batch.from_lengths([9] * MOST_FORMED + [8] * 4)
    time_ms, bound_ms, optimum = solved(((pipeline,), batch), 0.0, 1.0)
    assert optimum * (1 - 2 * LEAST_GAIN) <= bound_ms <= optimum * (1 + 1e-9)
    assert time_ms == pytest.approx(optimum)


@pytest.mark.parametrize("seed", range(14))
def test_small_steps_with_modes_are_solved(seed: int) -> None:
    with_stages, batch = random_case_with_modes(np.random.default_rng(seed))
    classes = drain_all(tuple(replace(k, pp=1) if seed % 2 else k for k in with_stages))
    some, optimum = fleet(classes), step_optimum(classes, batch)
    filling = dispatch(Filler(some, batch), single_bound_ms(classes, batch))
    if filling is None:
        return
    low = optimum * 0.5
    placement, bound_ms = close_gap(Placement(some, filling), batch, low, limit=0.5)
    assert_sound(some, batch, placement.filling)
    assert bound_ms <= optimum * (1 + 1e-9)
    assert optimum * (1 - 1e-9) <= placement.objective_ms <= filling.objective_ms
    if bound_ms > low:
        # Micro-batches are counted by their tokens: lengths that do not fit together need more.
        more_ms = max(mode.c for k in classes for mode in k.all_modes) * len(batch.lengths)
        assert bound_ms >= optimum * (1 - 2 * LEAST_GAIN) - more_ms
        assert placement.objective_ms <= optimum * (1 + 2 * LEAST_GAIN) + more_ms


def test_plans_with_modes_are_faster_or_closer() -> None:
    closer = 0
    profile = find_profile("llama3-8b-h100-80gb")
    models = {model.scheme: model for model in profile.usable(8, 32_768)}
    for execution in ("static", "regroup"):
        plain, exact = (
            Planner.from_profile(profile, 8, 32_768, execution=execution, exact=e)
            for e in (False, True)
        )
        for seed in range(2):
            lengths = np.random.default_rng(seed).choice([800, 3000, 9000, 24_000], 12).tolist()
            before, after = plain.plan(lengths), exact.plan(lengths)
            assert lint(after, models) == []
            assert after.predicted_ms <= before.predicted_ms * (1 + 1e-9)
            assert after.lower_bound_ms >= before.lower_bound_ms * (1 - 1e-9)
            closer += after.gap < before.gap - 1e-4
    assert closer


def test_too_many_sequences_are_left_alone() -> None:
    pipeline = PipelineClass(pp=1, a=0.0, b=1.0, c=5.0, capacity=30, unit=1, count=20, gpus=1)
    batch = Batch.from_lengths([20] * (MOST_SEQUENCES + 1))
    some = Fleet(Strategy.from_counts({Scheme(): 20}), (pipeline,))
    filling = dispatch(Filler(some, batch), single_bound_ms((pipeline,), batch))
    assert Instance.from_batch(some, batch, filling.objective_ms) is None
    placement = Placement(some, filling)
    assert close_gap(placement, batch, 1.0) == (placement, 1.0)


def test_a_step_that_just_misses_fitting_is_proven_optimal() -> None:
    profile = find_profile("llama-32b-a800-80gb").restrict(measured=True)
    models = {model.scheme: model for model in profile.usable(64, 32_768)}
    some = Fleet.from_strategy(Strategy.from_counts({Scheme(tp=16): 3, Scheme(tp=4): 4}), models)
    batch = drawn(20)  # long sequences fill the large pipelines, and the rest just misses
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    assert filling is not None
    placement = Placement(some, filling)
    searched = certify(some, batch, placement.objective_ms)
    assert placement.objective_ms > 1.1 * searched
    after, bound_ms = close_gap(placement, batch, searched)
    assert searched < bound_ms <= after.objective_ms <= placement.objective_ms
    assert after.objective_ms < bound_ms * (1 + EXACT_GAP / 10)
    assert close_gap(placement, batch, searched) == (after, bound_ms)


def test_an_answer_cut_short_is_the_same_again() -> None:
    batch = Batch.from_lengths(np.random.default_rng(4).integers(40, 400, 50).tolist())
    pipelines = [
        PipelineClass(pp=1, a=1e-4, b=1.0, c=90.0, capacity=640, unit=1, count=5, gpus=4),
        PipelineClass(pp=2, a=1e-4, b=0.8, c=60.0, capacity=500, unit=2, count=4, gpus=4),
    ]
    instance = Instance.from_batch(fleet(tuple(pipelines)), batch, 3000.0)
    assert instance is not None
    answers = [solve(instance, 900.0, limit) for limit in (0.2, 0.2, 0.5)]
    assert answers[0] == answers[1]
    assert isinstance(answers[0], ExactSolution)
    assert answers[0].bound_ms <= answers[2].bound_ms
    assert answers[0].bound_ms < answers[2].bound_ms or answers[0].pipeline != answers[2].pipeline


def test_plans_are_faster_or_closer_or_as_they_were() -> None:
    profile = find_profile("llama-32b-a800-80gb").restrict(measured=True)
    plain, exact = (
        Planner.from_profile(profile, 64, 32_768, execution="static", exact=exact)
        for exact in (False, True)
    )
    models = {model.scheme: model for model in profile.usable(64, 32_768)}
    lengths = drawn(27).lengths
    before, after = plain.plan(lengths), exact.plan(lengths)
    assert lint(after, models) == []
    assert after.strategy == before.strategy
    assert after.predicted_ms < before.predicted_ms
    assert after.lower_bound_ms >= before.lower_bound_ms
    assert before.gap > EXACT_GAP > after.gap
    assert to_json(exact.plan(lengths, step=after.step)) == to_json(after)
    # A plan that is out already keeps what it runs; its bound becomes as close.
    proven = exact.prove(before)
    assert proven.pipelines == before.pipelines
    assert proven.lower_bound_ms > before.lower_bound_ms
    assert plain.prove(before).lower_bound_ms == before.lower_bound_ms
    short = [700, 2900] * 40
    assert to_json(plain.plan(short, step=7)) == to_json(exact.plan(short, step=7))


def test_a_step_whose_groups_regroup_is_solved() -> None:
    """Few long sequences bind it: the plan becomes optimal, or is shown to be nearly so."""
    plain, exact = (
        Planner.from_profile("llama-32b-a800-80gb", 64, 131_072, exact=e) for e in (False, True)
    )
    profile = find_profile("llama-32b-a800-80gb")
    models = {model.scheme: model for model in profile.usable(64, 131_072)}
    solved = 0
    for step, batch in enumerate(islice(Sampler(CODE, 200_000, 131_072, 3).batches(25), 25)):
        if len(batch.lengths) > 20:
            continue
        before = plain.plan(batch.lengths, step=step)
        if not before.regroups or before.gap <= EXACT_GAP:
            continue
        after = exact.plan(batch.lengths, step=step)
        assert lint(after, models) == []
        assert after.predicted_ms <= before.predicted_ms
        assert after.lower_bound_ms >= before.lower_bound_ms
        assert after.layout_lower_bound_ms == before.layout_lower_bound_ms
        assert after.gap < before.gap / 1.5
        if not solved:
            assert to_json(exact.plan(batch.lengths, step=step)) == to_json(after)
        assert exact.prove(before).lower_bound_ms > before.lower_bound_ms
        solved += 1
    assert solved


@settings(max_examples=25)
@example([20, 21, 202, 300, 300], 0.0, 300)
@example([20, 153, 153, 214, 214], 40.0, 300)
@example([20, 73, 73, 208, 208], 5.0, 300)
@given(
    lengths=st.lists(st.integers(20, 300), min_size=2, max_size=5),
    c=st.sampled_from([0.0, 5.0, 40.0]),
    room=st.sampled_from([300, 450]),
)
def test_regrouping_is_solved_as_all_plans_on_two_ranks(
    lengths: list[int], c: float, room: int
) -> None:
    models = {
        Scheme(ulysses=sp): SchemeModel(Scheme(ulysses=sp), Latency(1e-3 / sp, 1.1 / sp, c), room)
        for sp in (1, 2)
    }
    (layout,) = make_regroup_layouts(models, NO_SYNC)
    batch = Batch.from_lengths(lengths)
    optimum = best_on_two_ranks(layout.classes, lengths)
    found, bound_ms = close_regrouping_gap(layout, batch, 2, optimum * 1.3, 0.0)
    assert bound_ms <= optimum * (1 + 1e-9)
    # The model counts micro-batches by their tokens: lengths that do not fit together need more.
    more_ms = c * len(lengths)
    assert bound_ms >= optimum * (1 - 2 * LEAST_GAIN) - more_ms
    if found is None:
        assert optimum * 1.3 <= optimum + more_ms
    else:
        assert found.objective_ms >= optimum * (1 - 1e-9)
        assert found.objective_ms <= optimum * (1 + 2 * LEAST_GAIN) + more_ms


def caught() -> str:
    """The signals for which this process has handlers, as the system knows them."""
    status = Path("/proc/self/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("SigCgt"))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_ctrl_c_is_handled_as_before() -> None:
    """CP-SAT by itself leaves SIGINT without a handler, whatever Python believes."""
    before = caught()
    solved(random_case(np.random.default_rng(0)), 0.0, 1.0)
    assert caught() == before


def test_the_solver_is_imported_on_demand() -> None:
    code = (
        "import sys; from seqplan import Planner\n"
        "for exact in (False, True):\n"
        "    Planner.from_profile('llama-7b-a800-80gb', 8, 4096, exact=exact)\n"
        "    print('ortools.sat.python.cp_model' in sys.modules)"
    )
    assert run_python("-c", code).split() == ["False", "True"]


@pytest.mark.parametrize("execution", ["static", "regroup"])
def test_an_optimum_is_proven_anew(execution: str) -> None:
    """The solver proves less than its time to beat, which here is the optimum that it found."""
    profile = find_profile("llama-13b-a800-80gb")
    models = Workload(32, 32_768, 32_768).models(profile)
    planner = Planner.from_profile(profile, 32, 32_768, execution=execution, exact=True)
    plan = planner.plan([1446, 1341, 2984, 3658, 2857, 1275, 2739, 1299, 4202, 6363])
    assert plan.gap < EXACT_GAP
    assert plan.lower_bound_ms > certify(
        make_fleet_of(plan, models), Batch.from_plan(plan), plan.predicted_ms
    )
    assert list(find_unproven(plan, models, exact=True)) == []
    false = replace(plan, lower_bound_ms=round(plan.lower_bound_ms * 1.001, 3))
    assert list(find_unproven(false, models, exact=True)) != []
