"""The sync of parameters and gradients decides between strategies, and nothing else."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settings_made import CODE, dense

from seqplan import Batch, Proposal, Scheme, StepPlanner, Strategy, Workload, explain, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.all_strategies import AllStrategies
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, single_bound_ms
from seqplan.planner.bounds.with_sync import Families, sync_bound_ms
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import mean_compute_ms
from seqplan.planner.placement.assembly import assemble
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.proposal.document import ProposalError
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import (
    GivenSyncTimes,
    LayoutSyncTimes,
    SyncTimes,
    layouts_of,
)
from seqplan.plans.lint import lint
from seqplan.plans.plan import Provenance

CANDIDATES = [Strategy.parse(text) for text in ("8×tp8", "4×tp16", "4×tp8 + 8×tp4", "16×tp4")]


def of(same: float, different: float) -> SyncTimes:
    return GivenSyncTimes(0.0, 0.0, "made", same, different)


def alone_ms(strategy: Strategy, batch: Batch) -> float:
    fleet = Fleet.from_strategy(strategy, dense().models)
    return dispatch(Filler(fleet, batch), cheap_bound_ms(fleet.classes, batch)).objective_ms


def replicas_differ(schemes: Iterable[Scheme]) -> bool:
    """Whether replicas of these schemes split their parameters differently: by tp or by pp."""
    return len(layouts_of(schemes)) > 1


def test_a_dear_sync_changes_the_choice_and_not_the_times() -> None:
    batch = dense().batches[0]
    free = select(batch, CANDIDATES, dense().models, 64)
    assert replicas_differ(scheme for scheme, _ in free.placement.fleet.strategy.counts)
    dear = select(batch, CANDIDATES, dense().models, 64, sync=of(100, 5000))
    chosen = dear.placement.fleet.strategy
    assert not replicas_differ(scheme for scheme, _ in chosen.counts)
    assert dear.placement.filling.objective_ms == pytest.approx(alone_ms(chosen, batch), rel=2e-3)
    # Bound and objective both leave the sync out, so that the gap is that of the placement.
    assert dear.lower_bound_ms <= dear.placement.filling.objective_ms <= dear.lower_bound_ms * 1.1
    # The same for all strategies, it decides nothing.
    same = select(batch, CANDIDATES, dense().models, 64, sync=of(5000, 5000))
    assert same.placement.fleet.strategy == free.placement.fleet.strategy


def test_a_plan_states_why_a_faster_candidate_was_left() -> None:
    batch = dense().batches[0]
    chosen = select(batch, CANDIDATES, dense().models, 64, sync=of(0, 300), tailor=False)
    faster = replace(
        chosen.considered[0], strategy=CANDIDATES[2], lower_bound_ms=1.0, predicted_ms=1.0
    )
    rest = [j for j in chosen.considered if j.strategy != CANDIDATES[2]]
    selected = replace(chosen, considered=(*rest, faster))
    plan = assemble(batch, selected, Provenance("0", 0, "p", None), 64, 1 / 3)
    assert lint(plan, dense().models) == []
    text = explain(plan, dense().models)
    assert "its sync takes longer" in text
    assert text.count("  best") == 1


@settings(max_examples=17)
@given(st.integers(0, 1), st.floats(0, 4000), st.floats(-2000, 4000))
def test_no_candidate_is_better_with_its_sync(at: int, same: float, more: float) -> None:
    batch = dense().batches[at]
    sync = of(same, max(0.0, same + more))
    chosen = select(batch, CANDIDATES, dense().models, 64, sync=sync)
    whole = chosen.placement.filling.objective_ms + sync.of_strategy_ms(
        chosen.placement.fleet.strategy
    )
    for strategy in CANDIDATES:
        if Fleet.from_strategy(strategy, dense().models).max_sequence < batch.longest:
            continue
        other = alone_ms(strategy, batch)
        assert whole <= other + sync.of_strategy_ms(strategy) + 2e-3 * other


@cache
def reached_on(at: int) -> tuple[Batch, float]:
    batch = dense().batches[at]
    return batch, min(alone_ms(s, batch) for s in CANDIDATES[1:3])


@settings(max_examples=8)
@given(
    st.integers(0, 1),
    st.one_of(
        st.builds(of, st.floats(0, 2000), st.floats(0, 5000)),
        st.dictionaries(
            st.sampled_from(sorted(layouts_of(dense().models))), st.floats(0, 4000), max_size=9
        ).map(
            lambda times: LayoutSyncTimes(
                0.0,
                0.0,
                "made",
                tuple((key, times.get(key, 1000.0)) for key in sorted(layouts_of(dense().models))),
            )
        ),
    ),
)
def test_the_bound_with_the_sync_holds_for_every_known_strategy(at: int, sync: SyncTimes) -> None:
    batch, reached = reached_on(at)
    models = dense().models
    families = Families(models, 64, sync)
    whole = reached + max(sync.compute_exposed_ms([layout]) for layout in layouts_of(models))
    bound = sync_bound_ms(families, batch, whole)
    assert bound >= cheap_bound_of_all(batch)
    for strategy in [*CANDIDATES, *homogeneous_strategies(models, 64, batch.longest)]:
        if Fleet.from_strategy(strategy, models).max_sequence >= batch.longest:
            time = alone_ms(strategy, batch) + sync.of_strategy_ms(strategy)
            assert bound <= max(whole, time) * (1 + 1e-9)
            assert bound <= time * (1 + 1e-9) or time > whole


def cheap_bound_of_all(batch: Batch) -> float:
    return single_bound_ms(AllStrategies(dense().models, 64).classes, batch) * (1 - 1e-9)


@cache
def proposed(sync: SyncTimes | None) -> Proposal:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    return make_proposal(profile, Workload(8, 16384, 50_000), CODE, sync=sync)


def test_a_proposal_carries_its_sync_to_planning(tmp_path: Path) -> None:
    sync = choose_sync(load_shipped("llama-7b-a800-80gb"), 8, sync_ms=(10.0, 900.0))
    with_it = proposed(sync)
    again = Proposal.from_json(with_it.to_json(), "file")
    assert again == with_it
    assert again.sync == sync
    assert '"sync"' not in proposed(None).to_json()
    assert with_it.lower_bound_ms <= with_it.expected_ms
    assert with_it.layouts.chosen is None  # a different one at each step is better by more than 1 %
    for other in with_it.candidates:
        assert not replicas_differ(scheme for scheme, _ in other.strategy.counts)
    batch = next(Sampler(CODE, 50_000, 16384, 0).batches(1))
    choices = [StepPlanner(document).plan(batch) for document in (with_it, proposed(None))]
    stated, free = [replicas_differ(p.scheme for p in plan.pipelines) for plan in choices]
    assert (stated, free) == (False, True)
    assert lint(choices[0], with_it.workload.models(with_it.profile)) == []


def test_an_choose_sync_a_proposal_must_be_sound() -> None:
    damaged = of(1, 2)
    object.__setattr__(damaged, "overlap", 3)
    text = replace(proposed(None), sync=damaged).to_json()
    with pytest.raises(
        ProposalError, match="file: sync: overlap must be a share from 0 to 1, not 3"
    ):
        Proposal.from_json(text, "file")


def test_eq4_does_not_weigh_the_sync() -> None:
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    with pytest.raises(ValueError, match="eq4 does not weigh the sync"):
        make_proposal(profile, Workload(16, 16384, 50_000), CODE, method="eq4", sync=of(1, 2))


def test_ours_is_no_slower_than_the_best_static_strategy_in_whole_iterations() -> None:
    """At 16K the sync as published makes equal replicas the better choice on most steps."""
    profile = load_shipped("llama-32b-a800-80gb").restrict(measured=True)
    sync = choose_sync(profile, 32)
    comparison = compare(
        profile, Workload(32, 16384, 100_000), CODE, 3, sync, options=Options(("static",))
    )
    static = next(system for system in comparison.systems if system.key == "static")
    assert min(comparison.speedups(static)) >= 0.995
    assert mean_compute_ms(comparison.ours) <= mean_compute_ms(static) * 1.005


def test_replicas_differ_by_how_parameters_are_split() -> None:
    assert not replicas_differ([Scheme(tp=2, ulysses=4), Scheme(tp=2, ring=2)])
    assert replicas_differ([Scheme(tp=2), Scheme(tp=4)])
    assert replicas_differ([Scheme(tp=2), Scheme(tp=2, pp=2)])
