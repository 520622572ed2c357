"""Plans that stay good at other costs: never slower than uniform execution at a corner."""

from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt
import pytest

from seqplan import (
    Batch,
    Plan,
    Profile,
    Proposal,
    Scheme,
    StepPlanner,
    Strategy,
    Workload,
    from_json,
    make_proposal,
    read_lengths,
    to_json,
)
from seqplan.costs.cost_errors import CostError, list_corners
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.placement.recost import simulate_at_costs_ms
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.strategies.homogeneous import strategy_ms
from seqplan.plans.lint import lint

WHOLE = load_shipped("llama-13b-a800-80gb")
PROFILE = WHOLE.keep_schemes({s for s in WHOLE.by_scheme if s.pp == 1 and s.ulysses == 1})
WORKLOAD = Workload(16, 16_384, 40_000)
SHARE = 0.1


CODE = Path(__file__).parents[3] / "examples" / "data" / "code.npy"


@cache
def _lengths() -> npt.NDArray[np.int64]:
    return read_lengths([CODE]).values


@cache
def _batches() -> list[Batch]:
    return list(Sampler(_lengths(), WORKLOAD.tokens, WORKLOAD.max_len, 0).batches(2))


@cache
def _proposal(wrong: CostError | None = None) -> Proposal:
    profile = PROFILE if wrong is None else wrong.apply(PROFILE)
    return make_proposal(profile, WORKLOAD, _lengths())


@cache
def _plans(robust: float, wrong: CostError | None = None) -> list[Plan]:
    planner = StepPlanner(_proposal(wrong), PlanningOptions(robust=robust))
    return [planner.plan(batch) for batch in _batches()]


def _time(plan: Plan, profile: Profile) -> float:
    models = WORKLOAD.models(profile)
    compute = simulate_at_costs_ms(plan.pipelines, plan.lengths, models, profile.forward_fraction)
    return compute + (plan.sync_ms or 0.0)


def test_robust_plans_are_plans_of_the_profile() -> None:
    proposal = _proposal()
    models = WORKLOAD.models(PROFILE)
    for plan in _plans(SHARE):
        assert lint(plan, models) == []
        assert from_json(to_json(plan)) == plan
        assert plan.provenance.profile == PROFILE.digest
        assert plan.provenance.proposal == proposal.digest
        assert list(find_unproven(plan, models)) == []
    again = StepPlanner(proposal, PlanningOptions(robust=SHARE))
    assert [to_json(again.plan(batch)) for batch in _batches()] == [
        to_json(plan) for plan in _plans(SHARE)
    ]


def test_robust_plans_are_at_no_corner_slower_than_uniform_execution() -> None:
    layouts = _proposal().layouts
    assert layouts.static is not None
    uniform = Strategy.parse(layouts.static)
    sync = _proposal().sync
    assert sync is not None
    for corner in list_corners(SHARE):
        profile = corner.apply(PROFILE)
        models = WORKLOAD.models(profile)
        for batch, plan in zip(_batches(), _plans(SHARE), strict=True):
            packed_anew = strategy_ms(uniform, batch, models)
            # Uniform execution may be packed better for the corner than for the profile.
            limit = (packed_anew + sync.of_strategy_ms(uniform)) * 1.005
            assert _time(plan, profile) <= limit


def test_plans_made_with_wrong_costs_keep_most_of_the_gain() -> None:
    best = mean(_time(plan, PROFILE) for plan in _plans(0.0))
    for wrong in list_corners(SHARE)[:2]:
        assert mean(_time(plan, PROFILE) for plan in _plans(SHARE, wrong)) <= best * 1.02


def test_errors_change_what_they_name() -> None:
    scheme = Scheme(tp=8, ring=2)
    true = PROFILE.by_scheme[scheme].latency
    for place, name in enumerate("abc"):
        factors = tuple(1.1 if place == other else 1.0 for other in range(3))
        wrong = CostError(name=name, factors=factors).apply(PROFILE)  # type: ignore[arg-type]
        changed = wrong.by_scheme[scheme].latency
        for other in "abc":
            factor = 1.1 if other == name else 1.0
            assert getattr(changed, other) == pytest.approx(factor * getattr(true, other))
    slow = CostError(name="ranks", rank_ms=5.0).apply(PROFILE)
    assert slow.by_scheme[scheme].latency.c == pytest.approx(true.c + 5.0)
    alone = Scheme(tp=8)
    assert slow.by_scheme[alone].latency.c == pytest.approx(PROFILE.by_scheme[alone].latency.c)
    assert slow.digest != PROFILE.digest
    modes = load_shipped("llama3-8b-h100-80gb")
    spread = CostError(name="spread", spread=0.1, seed=1).apply(modes)
    for entry in modes.schemes[:20]:
        of_modes = spread.by_scheme[entry.scheme].modes
        ratios = {round(of_modes[mode].b / entry.modes[mode].b, 6) for mode in of_modes}
        assert len(ratios) == 1
        assert 0.9 <= ratios.pop() <= 1.1


def test_recomputation_modes_and_stages_stay_sound() -> None:
    profile = load_shipped("llama3-8b-h100-80gb").keep_schemes(
        {Scheme(tp=2), Scheme(tp=4), Scheme(tp=4, ulysses=2), Scheme(tp=2, pp=2)}
    )
    workload = Workload(16, 32_768, 150_000)
    proposal = make_proposal(profile, workload, _lengths())
    planner = StepPlanner(proposal, PlanningOptions(robust=SHARE))
    for batch in Sampler(_lengths(), workload.tokens, workload.max_len, 1).batches(2):
        plan = planner.plan(batch)
        assert lint(plan, workload.models(profile)) == []
        assert planner.prove(plan).predicted_ms == plan.predicted_ms


def test_a_mode_may_be_faster_at_a_corner_than_one_that_recomputes_less() -> None:
    def kept(name: str, kept_bytes: float) -> dict[str, object]:
        kept, transient = {"4": kept_bytes}, {"4": 0.0}
        fields = {"kept_bytes_per_token": kept, "transient_bytes_per_token": transient}
        return {"name": name, "forward_fraction": 0.33, **fields}

    memory = {key: value for key, value in PROFILE.document["memory"].items() if "token" not in key}
    none, faster = {"a": 1e-6, "b": 0.02, "c": 30.0}, {"a": 1e-6, "b": 0.0168, "c": 31.0}
    document = {
        **{key: value for key, value in PROFILE.document.items() if key != "recompute"},
        "modes": [kept("none", 1000.0), kept("elementwise", 600.0)],
        "memory": memory,
        "schemes": [{"tp": 4, "modes": {"none": none, "elementwise": faster}}],
    }
    profile = Profile.from_document(document, "modes")
    problem = PlanningProblem(
        profile=profile, workload=Workload(4, 8_000, 8_000), sync=None, execution="static"
    )
    planner = StepPlanner(problem, PlanningOptions(robust=SHARE))
    assert planner.plan(Batch.from_lengths([8_000, 900, 100])).predicted_ms > 0
