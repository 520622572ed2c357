"""The candidate that a step is planned on, and the reasons against the others."""

import numpy as np
import pytest
from instances import LLAMA_32B, assert_sound, batch_of

from seqplan import Batch, Infeasible, Strategy
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, single_bound_ms
from seqplan.planner.bounds.strategy_bounds import StrategyBounds
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.step.selection import select
from seqplan.planner.strategies.homogeneous import (
    best_homogeneous,
    homogeneous_strategies,
    strategy_ms,
)
from seqplan.planner.sync.times import LayoutSyncTimes, layouts_of


def test_selection_plans_on_the_best_candidate_and_accounts_for_all() -> None:
    batch = batch_of(1)
    candidates = [Strategy.parse(text) for text in ("4xtp16", "1xtp16+12xtp4", "16xtp4")]
    chosen = select(batch, candidates, LLAMA_32B, 64, tailor=False)
    assert_sound(chosen.placement.fleet, batch, chosen.placement.filling)
    times = {}
    for strategy in candidates:
        some = Fleet.from_strategy(strategy, LLAMA_32B)
        if some.max_sequence >= batch.longest:
            filling = dispatch(Filler(some, batch), single_bound_ms(some.classes, batch))
            times[strategy] = filling.objective_ms
    assert chosen.placement.filling.objective_ms <= min(times.values()) * 1.002
    assert {entry.strategy for entry in chosen.considered} == set(times)
    for entry in chosen.considered:
        assert entry.lower_bound_ms <= times[entry.strategy] * (1 + 1e-9)
    tailored = select(batch, candidates, LLAMA_32B, 64)
    assert tailored.placement.filling.objective_ms <= chosen.placement.filling.objective_ms * (
        1 + 1e-9
    )
    assert_sound(tailored.placement.fleet, batch, tailored.placement.filling)


def test_selection_names_the_sequence_that_no_candidate_holds() -> None:
    batch = Batch(7, (40, 41), (100, 30000))
    with pytest.raises(Infeasible, match=r"step 7: sequence 41 has 30000 .* candidate .* 21928;"):
        select(batch, [Strategy.parse("8xtp8")], LLAMA_32B, 64, tailor=False)


def test_a_strategy_is_made_where_no_candidate_holds_the_longest() -> None:
    batch = Batch(7, (40, 41), (100, 30000))
    selected = select(batch, [Strategy.parse("8xtp8")], LLAMA_32B, 64)
    assert_sound(selected.placement.fleet, batch, selected.placement.filling)
    assert selected.placement.fleet.max_sequence >= 30000
    assert selected.lower_bound_ms <= selected.placement.objective_ms
    assert selected.placement.strategy in {entry.strategy for entry in selected.considered}
    with pytest.raises(Infeasible, match=r"sequence 0 has 90000 .* scheme of the profile .* 4"):
        select(Batch.from_lengths([90000]), [Strategy.parse("8xtp8")], LLAMA_32B, 64)


def test_no_candidates_are_needed() -> None:
    profile = load_shipped("llama-32b-a800-80gb")
    models = {model.scheme: model for model in profile.usable(64, 32768)}
    batch = batch_of(1)
    layouts = sorted(layouts_of(models))
    times = tuple((layout, 1e4 / (layout[0] * layout[1])) for layout in layouts)
    sync = LayoutSyncTimes(0.0, 0.0, "by hand", times)
    selected = select(batch, [], models, 64, sync=sync)
    fleet, filling = selected.placement.fleet, selected.placement.filling
    assert_sound(fleet, batch, filling, in_order=fleet.has_stages)
    static = best_homogeneous([batch], models, 64, sync)
    reached = selected.placement.objective_ms + sync.of_strategy_ms(selected.placement.strategy)
    assert reached <= (static[1][0] + sync.of_strategy_ms(static[0])) * 1.001


def test_a_step_is_planned_on_schemes_that_no_candidate_has() -> None:
    profile = load_shipped("llama-32b-a800-80gb")
    models = {model.scheme: model for model in profile.usable(64, 32768)}
    batch = batch_of(1)
    candidates = [Strategy.parse("8xtp4.u2"), Strategy.parse("4xtp4.u4")]
    fixed = select(batch, candidates, models, 64, tailor=False)
    selected = select(batch, candidates, models, 64)
    assert selected.placement.objective_ms < fixed.placement.objective_ms * 0.98
    assert layouts_of(scheme for scheme, _ in selected.placement.strategy.counts) == {(4, 1)}
    schemes = {scheme for strategy in candidates for scheme, _ in strategy.counts}
    assert {scheme for scheme, _ in selected.placement.strategy.counts} - schemes


@pytest.mark.parametrize("with_candidate", [False, True])
def test_no_step_is_slower_than_the_best_strategy_of_one_scheme(*, with_candidate: bool) -> None:
    """Of few sequences, some about as long as any that fits; of the candidate's layout, if any."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        gpus, max_len = int(rng.choice([8, 16, 32])), int(rng.choice([32768, 65536, 131072]))
        profile = load_shipped(str(rng.choice(["llama3-8b-h100-80gb", "llama-7b-a800-80gb"])))
        models = {m.scheme: m for m in profile.usable(gpus, max_len) if m.scheme.pp == 1}
        longest = min(max_len, max(model.max_sequence for model in models.values()))
        drawn = rng.lognormal(7.5, 1.2, int(rng.integers(17, 150)))
        lengths = np.clip(drawn, 64, longest).astype(int).tolist()
        lengths[:4] = rng.integers(longest // 2, longest, 4).tolist()
        batch = Batch.from_lengths(lengths)
        strategies = homogeneous_strategies(models, gpus, batch.longest)
        candidates = [strategies[int(rng.integers(len(strategies)))]] if with_candidate else []
        reached = select(batch, candidates, models, gpus, prove=False).placement.objective_ms
        layouts = layouts_of(s for strategy in candidates or strategies for s, _ in strategy.counts)
        for strategy in strategies:
            if layouts_of(scheme for scheme, _ in strategy.counts) <= layouts:
                static_ms = strategy_ms(strategy, batch, models)
                assert static_ms is not None
                assert reached <= static_ms * 1.001


@pytest.mark.parametrize("lengths", [[123_117, 122_364, 122_737, 121_219], [120_000] * 4])
def test_stages_chosen_by_an_estimate_give_way_to_groups_without(lengths: list[int]) -> None:
    """Two stages take 5 % longer than their estimate, and 2 to 5 % longer than two rings."""
    models = {m.scheme: m for m in load_shipped("llama3-70b-h100-80gb").usable(64, 131_072)}
    batch = Batch.from_lengths(lengths)
    stages, rings = (Strategy.parse(text) for text in ("1×tp8.pp2.r4", "2×tp8.r4"))
    selected = select(batch, [], models, 64)
    assert selected.placement.strategy == rings
    staged = select(batch, [stages], models, 64, tailor=False)
    assert selected.placement.objective_ms < 0.97 * staged.placement.objective_ms


def test_groups_without_stages_are_compared_after_exchanges() -> None:
    """Their first fill takes longer than the stages, 7 % less after exchanges."""
    models = {m.scheme: m for m in load_shipped("llama3-70b-h100-80gb").usable(64, 131_072)}
    batch = Batch.from_lengths([11319, 11365, 19501, 17462, 19532, 15162, 15818, 18036])
    rings = select(batch, [Strategy.parse("2×tp8.r4")], models, 64, tailor=False)
    selected = select(batch, [], models, 64)
    assert selected.placement.objective_ms <= rings.placement.objective_ms * 1.001


def test_bounds_of_strategies_are_those_of_their_pipelines() -> None:
    batch = batch_of(1)
    bounds = StrategyBounds(batch, LLAMA_32B)
    for text in ("4xtp16", "1xtp16+12xtp4", "16xtp4", "2xtp8.pp2+4xtp8"):
        classes = Fleet.from_strategy(strategy := Strategy.parse(text), LLAMA_32B).classes
        assert bounds.bound_ms(strategy) == cheap_bound_ms(classes, batch)
