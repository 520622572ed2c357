"""Planning with derived profiles of models with windows and experts: bounds hold, plans lint."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from deployments import deploy
from oracles.exhaustive import any_strategy_optimum

from seqplan import Batch, Profile, Scheme, StepPlanner, Workload, make_proposal
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import ModelSizes
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.proposal.search import search
from seqplan.planner.sync.choice import choose_sync
from seqplan.plans.lint import lint

GEMMA = Path(__file__).parents[2] / "costs" / "model_configs" / "gemma-3-1b.json"
SCHEMES = [Scheme.parse(text) for text in ("tp1", "u2", "u4", "u2.r2", "tp4", "tp4.u2", "tp8")]
NAMES = ["gemma-3-1b", "gpt-oss-20b", "qwen3-30b-a3b"]


@cache
def profile_of(name: str) -> Profile:
    sizes = ModelSizes.from_mapping(MODELS[name] if name in MODELS else read_model_config(GEMMA))
    possible = [scheme for scheme in SCHEMES if sizes.heads % (scheme.tp * scheme.ulysses) == 0]
    document = derive_profile(deploy(sizes, "h200-141gb"), possible, name=name)
    return Profile.from_document(document, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_against_exhaustive_search(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([200, 700, 4096, 9000, 20000], size=rng.integers(2, 6))
    models = {
        model.scheme: model
        for model in profile_of(name).usable(8, 32768)
        if model.max_sequence >= max(lengths)
    }
    batch = Batch.from_lengths(lengths.tolist())
    all_strategies = AllStrategies(models, 8)
    best = any_strategy_optimum(all_strategies.classes, batch, 8)
    strategies = list(search(all_strategies, batch))
    assert strategies
    for strategy in strategies:
        filling = dispatch(Filler(Fleet.from_strategy(strategy, models), batch), best)
        assert filling.objective_ms >= best * (1 - 1e-9)
        assert all_strategies_bound_ms(all_strategies, batch, filling.objective_ms) <= best * (
            1 + 1e-9
        )


@pytest.mark.parametrize("name", NAMES)
def test_plans_lint_and_stay_above_their_bound(name: str) -> None:
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(8.0, 1.2, 400).astype(np.int64) + 16, 32768)
    profile = profile_of(name)
    document = make_proposal(
        profile, Workload(16, 32768, 200_000), lengths, sync=choose_sync(profile, 16)
    )
    planner = StepPlanner(document)
    plan = planner.plan(Batch.from_lengths(lengths[:60].tolist()))
    assert lint(plan, planner.problem.models) == []
    assert 0 < plan.lower_bound_ms <= plan.predicted_ms
    assert plan.predicted_ms <= 1.25 * plan.lower_bound_ms
