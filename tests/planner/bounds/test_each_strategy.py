"""The bound over strategies of whole pipelines: below every optimum, above that of fractions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import ClusterCase, clusters
from oracles.exhaustive import any_strategy_optimum

from benchmarks import each_strategy
from benchmarks.each_strategy import each_strategy_bound_ms
from seqplan import Batch, Planner, find_profile
from seqplan.planner.bounds.all_strategies import all_strategies_bound_ms, weigh_time
from seqplan.planner.bounds.with_sync import Families, sync_bound_ms
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import NO_SYNC

SLACK = 1 + 1e-9


def bound_and_optimum(case: ClusterCase) -> tuple[float, float]:
    models, batch, gpus = case
    families = Families(models, gpus, NO_SYNC)
    optimum = any_strategy_optimum(families.whole.classes, batch, gpus, least=True)
    if not np.isfinite(optimum):
        return 0.0, optimum
    return each_strategy_bound_ms(families, batch, optimum * 1.2), optimum


@settings(max_examples=53)
@given(clusters())
def test_no_strategy_ends_before_it(case: ClusterCase) -> None:
    bound, optimum = bound_and_optimum(case)
    assert bound <= optimum * SLACK


def test_a_class_that_is_said_to_hold_less_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    most = each_strategy.HeldValue.most
    monkeypatch.setattr(each_strategy.HeldValue, "most", lambda self, ms: 0.7 * most(self, ms))
    wrong = []

    @settings(max_examples=100, derandomize=True)
    @given(clusters())
    def look(case: ClusterCase) -> None:
        bound, optimum = bound_and_optimum(case)
        wrong.append(bound > optimum * SLACK)

    look()
    assert any(wrong)


@pytest.mark.parametrize(("seed", "longest"), [(0, 30_000), (1, 12_000)])
def test_it_is_closer_than_fractions_and_below_plans(seed: int, longest: int) -> None:
    profile = find_profile("qwen3-32b-h100-80gb")
    models = {model.scheme: model for model in profile.usable(16, 32_768)}
    sync = choose_sync(profile, 16)
    drawn = np.exp(np.random.default_rng(seed).normal(6.5, 1.4, 100))
    lengths = [longest, *np.clip(drawn, 1, longest).astype(int).tolist()]
    plan = Planner.from_profile(profile, 16, 32_768, execution="static").plan(lengths)
    reached = plan.predicted_ms + (plan.sync_ms or 0.0)
    families, batch = Families(models, 16, sync), Batch.from_lengths(lengths)
    bound = each_strategy_bound_ms(families, batch, reached)
    assert bound <= reached
    assert bound >= sync_bound_ms(families, batch, reached) * (1 - 2e-3)


@settings(max_examples=40)
@given(clusters(), st.floats(0.9, 1.1))
def test_refuted_times_are_below_every_optimum(case: ClusterCase, share: float) -> None:
    models, batch, gpus = case
    relaxation = Families(models, gpus, NO_SYNC).whole
    optimum = any_strategy_optimum(relaxation.classes, batch, gpus, least=True)
    if np.isfinite(optimum):
        refuted, _ = weigh_time(relaxation, batch, optimum * share)
        assert not refuted or share < SLACK


def test_a_time_below_the_bound_is_refuted_by_one_program() -> None:
    models = {model.scheme: model for model in find_profile("llama-32b-a800-80gb").usable(64, 1)}
    relaxation = Families(models, 64, NO_SYNC).whole
    batch = Batch.from_lengths([30_000, *range(200, 8_000, 50)])
    bound_ms = all_strategies_bound_ms(relaxation, batch, 20_000.0)
    assert [weigh_time(relaxation, batch, bound_ms * share)[0] for share in (0.98, 1.02)] == [
        True,
        False,
    ]
