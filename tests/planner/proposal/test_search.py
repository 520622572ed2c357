"""Strategies made for a batch, exchanges, balance, selection and whole proposals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from instances import Case, cases, fleet
from oracles.exhaustive import any_strategy_optimum, step_optimum

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.step_bounds import single_bound_ms
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.balance import balance
from seqplan.planner.placement.dispatch import dispatch, level
from seqplan.planner.placement.fill import Filler, Filling
from seqplan.planner.placement.fleet import Fleet, form_s
from seqplan.planner.proposal.candidates import Effort, propose
from seqplan.planner.proposal.search import search
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.local_search import swap
from seqplan.planner.strategies.rounding import rounded_strategies
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.profiler.latency import Latency
from seqplan.profiler.scheme_model import SchemeModel
from seqplan.profiler.shipped.catalogue import shipped

LLAMA = shipped("llama-32b-a800-80gb")
MODELS = {model.scheme: model for model in LLAMA.usable(64, 32768)}


def batch_of(seed: int, sequences: int = 120) -> Batch:
    """Long-tailed lengths up to 32,768."""
    drawn = np.exp(np.random.default_rng(seed).normal(6.5, 1.4, sequences))
    return Batch.of_lengths(np.clip(drawn, 1, 32768).astype(int).tolist())


def placed(batch: Batch, filling: Filling) -> list[int]:
    """How many sequences of each distinct length a placement holds."""
    counts = [0] * len(batch.distinct)
    for pipelines in filling.bins:
        for pipeline in pipelines:
            for micro in pipeline:
                for i, n in micro:
                    counts[i] += n
    return counts


def assert_sound(some: Fleet, batch: Batch, filling: Filling) -> None:
    """Complete, within MaxLen, and with the times that its micro-batches have."""
    assert placed(batch, filling) == batch.multiplicity.tolist()
    lengths = batch.distinct.tolist()
    for item, pipelines, times in zip(some.classes, filling.bins, filling.pipeline_ms, strict=True):
        assert len(pipelines) == item.count
        for pipeline, time in zip(pipelines, times, strict=True):
            assert time == pytest.approx(form_s(item, lengths, pipeline))
            for micro in pipeline:
                padded = sum(-(-lengths[i] // item.unit) * item.unit * n for i, n in micro)
                assert padded <= item.capacity


@settings(max_examples=150, deadline=None)
@given(cases())
def test_balance_and_level_keep_a_placement_sound_and_no_slower(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filler = Filler(some, batch)
    filling = dispatch(filler, single_bound_ms(some.classes, batch))
    if filling is None:
        return
    for changed in (balance(some, batch, filling, 0.0), level(filler, filling, 0.0)):
        assert_sound(some, batch, changed)
        assert changed.objective_ms <= filling.objective_ms * (1 + 1e-9)
        assert changed.objective_ms >= step_optimum(some.classes, batch) * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_certificate_is_a_bound_on_every_placement_of_the_fleet(case: Case) -> None:
    classes, batch = case
    some = fleet(classes)
    filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
    if filling is not None:
        proven = certify(some, batch, filling.objective_ms)
        assert proven <= step_optimum(some.classes, batch) * (1 + 1e-9)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[Scheme, SchemeModel], Batch, int]:
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    models = {}
    for tp, pp in draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=3, unique=True
        )
    ):
        latency = Latency(
            draw(st.sampled_from([0.0, 0.01, 0.1])) / tp,
            draw(st.sampled_from([0.2, 1.0])) / tp,
            draw(st.sampled_from([0.0, 1.0, 9.0])),
        )
        scheme = Scheme(tp=tp, pp=pp)
        models[scheme] = SchemeModel(scheme, latency, max(lengths) * draw(st.integers(1, 4)) + tp)
    least = min(scheme.gpus for scheme in models)
    return models, Batch.of_lengths(lengths), draw(st.integers(least, least + 3))


SLOW_TO_FIT = (
    {
        Scheme(2, 2): SchemeModel(Scheme(2, 2), Latency(0.0, 0.1, 0.0), 22),
        Scheme(3, 1): SchemeModel(Scheme(3, 1), Latency(0.0, 0.2 / 3, 9.0), 23),
    },
    Batch.of_lengths([3, 20, 20]),
    3,
)
"""Most of the time is launch overhead: the GPUs needed fall slower than the time rises."""


@settings(max_examples=120, deadline=None)
@example(SLOW_TO_FIT)
@given(clusters())
def test_the_bound_over_all_strategies_holds_and_search_stays_above_it(
    case: tuple[dict[Scheme, SchemeModel], Batch, int],
) -> None:
    models, batch, gpus = case
    models = {scheme: model for scheme, model in models.items() if scheme.gpus <= gpus}
    models = {s: m for s, m in models.items() if m.max_sequence >= batch.longest} or {}
    if not models:
        return
    everything = AllStrategies(models, gpus)
    best = any_strategy_optimum(everything.classes, batch, gpus)
    for strategy in search(everything, batch):
        assert strategy.gpus <= gpus
        filling = dispatch(Filler(Fleet.of(strategy, models), batch), best)
        assert filling is not None
        assert filling.objective_ms >= best * (1 - 1e-9)
        bound = all_strategies_bound_ms(everything, batch, filling.objective_ms)
        assert bound <= best * (1 + 1e-9)


def test_swaps_keep_within_the_gpus_and_need_enough_pipelines() -> None:
    tp4, tp8, tp16 = Scheme(tp=4), Scheme(tp=8), Scheme(tp=16)
    start = Strategy.of({tp16: 1, tp4: 11})
    assert swap(start, tp4, tp8, 1, 64) == Strategy.of({tp16: 1, tp8: 1, tp4: 10})
    assert swap(start, tp16, tp8, 1, 64) == Strategy.of({tp8: 2, tp4: 11})
    assert swap(start, tp16, tp8, 2, 64) is None
    assert swap(start, tp4, tp16, 4, 64) is None


@pytest.mark.parametrize("longest", [1000, 20000, 32768])
def test_rounded_strategies_hold_the_longest_sequence_within_the_gpus(longest: int) -> None:
    schemes = sorted(MODELS)
    pipelines = np.array([11.3 if scheme == Scheme(tp=4) else 0.4 for scheme in schemes])
    found = rounded_strategies(schemes, pipelines, MODELS, 64, longest)
    assert found
    for strategy in found:
        assert strategy.gpus <= 64
        assert max(MODELS[scheme].max_sequence for scheme, _ in strategy.counts) >= longest


def test_selection_plans_on_the_best_candidate_and_accounts_for_all() -> None:
    batch = batch_of(1)
    candidates = [Strategy.parse(text) for text in ("4xtp16", "1xtp16+12xtp4", "16xtp4")]
    chosen = select(batch, candidates, MODELS, 64, tailor=False)
    assert_sound(chosen.placement.fleet, batch, chosen.placement.filling)
    times = {}
    for strategy in candidates:
        some = Fleet.of(strategy, MODELS)
        if some.max_sequence >= batch.longest:
            filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
            assert filling is not None
            times[strategy] = filling.objective_ms
    assert chosen.placement.filling.objective_ms <= min(times.values()) * 1.002
    assert {entry.strategy for entry in chosen.considered} == set(times)
    for entry in chosen.considered:
        assert entry.lower_bound_ms <= times[entry.strategy] * (1 + 1e-9)
    tailored = select(batch, candidates, MODELS, 64)
    assert tailored.placement.filling.objective_ms <= chosen.placement.filling.objective_ms * (
        1 + 1e-9
    )
    assert_sound(tailored.placement.fleet, batch, tailored.placement.filling)


def test_selection_says_which_sequence_no_candidate_holds() -> None:
    batch = Batch(7, (40, 41), (100, 30000))
    with pytest.raises(Infeasible, match=r"step 7: sequence 41 has 30000 tokens.*21928"):
        select(batch, [Strategy.parse("8xtp8")], MODELS, 64)


def test_a_proposal_holds_the_longest_sequence_and_stands_near_its_bound() -> None:
    batches = [batch_of(seed) for seed in range(6)]
    proposal = propose(batches, MODELS, 64, 32768, Effort(judged=6))
    assert proposal.lower_bound_ms <= proposal.pool_ms <= proposal.expected_ms
    assert proposal.expected_ms <= proposal.lower_bound_ms * 1.15
    assert any(item.max_sequence >= 32768 for item in proposal.candidates)
    assert all(item.strategy.gpus <= 64 for item in proposal.candidates)
    assert sum(item.wins for item in proposal.candidates) == pytest.approx(1.0)
