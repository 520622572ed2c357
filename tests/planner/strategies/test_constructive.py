"""Strategies of one layout made for one batch from its schemes alone."""

import os
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import assert_sound, batch_of
from oracles.exhaustive import any_strategy_optimum
from step_lengths import CODE

from seqplan import Batch, Scheme
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.placement.fill import VARIABLE
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.planner.strategies.constructive import Constructive, LayoutSchemes


@st.composite
def one_layout(draw: st.DrawFn) -> tuple[Models, Batch, int]:
    """Up to three schemes of one layout, sequences that the largest holds, GPUs."""
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    degrees = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3, unique=True))
    pp, c = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([0.0, 1.0, 9.0]))
    models = {}
    for degree in degrees:
        scheme = Scheme(pp=pp, ulysses=degree)
        latency = Latency(draw(st.sampled_from([0.0, 0.01, 0.1])) / degree, 1.0 / degree**0.9, c)
        longest = max(lengths) + 2 * degree
        capacity = draw(st.integers(longest if degree == max(degrees) else 1, 2 * longest))
        models[scheme] = SchemeModel(scheme, latency, capacity)
    least = max(scheme.gpus for scheme in models)
    return models, Batch.from_lengths(lengths), draw(st.integers(least, least + 4))


def schemes_of(tp: int, pp: int, gpus: int = 1024) -> LayoutSchemes:
    """The schemes of a layout of a shipped profile."""
    usable = load_shipped("llama-32b-a800-80gb").usable(gpus, 32768)
    models = {m.scheme: m for m in usable if (m.scheme.tp, m.scheme.pp) == (tp, pp)}
    return LayoutSchemes.list_from_models(models)[0]


@given(one_layout())
def test_constructed_strategies_are_sound_and_not_below_the_optimum(
    case: tuple[Models, Batch, int],
) -> None:
    models, batch, gpus = case
    layout = LayoutSchemes.list_from_models(models)[0]
    constructive = Constructive(layout, batch, gpus)
    assert layout.holds(batch)
    placement = constructive.place(np.inf)
    assert_sound(placement.fleet, batch, placement.filling)
    assert placement.strategy.gpus <= gpus
    classes = [PipelineClass.from_model(model, 1) for model in models.values()]
    optimum = any_strategy_optimum(classes, batch, gpus)
    assert layout.bound_ms(batch, gpus) <= optimum * (1 + 1e-9)
    assert placement.objective_ms >= optimum * (1 - 1e-9)
    below = constructive.place(placement.objective_ms)
    assert below is None or below.objective_ms < placement.objective_ms


@pytest.mark.parametrize("tp_pp", [(4, 1), (8, 1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_close_to_the_bound_without_any_candidate(tp_pp: tuple[int, int], seed: int) -> None:
    batch = batch_of(seed, 1500)
    layout = schemes_of(*tp_pp)
    placement = Constructive(layout, batch, 1024).place(np.inf)
    assert_sound(placement.fleet, batch, placement.filling)
    assert placement.strategy.gpus == 1024
    assert placement.objective_ms <= layout.bound_ms(batch, 1024) * 1.08
    with patch.dict(os.environ, {VARIABLE: "python"}):
        in_python = Constructive(layout, batch, 1024).place(np.inf)
    assert in_python.strategy == placement.strategy
    assert in_python.filling.bins == placement.filling.bins


def test_a_limit_just_above_the_result_does_not_hide_it() -> None:
    constructive = Constructive(schemes_of(8, 1), batch_of(2, 1500), 1024)
    reached = constructive.place(np.inf)
    assert reached is not None
    for margin in (1.003, 1.01, 1.05, 1.4):
        again = constructive.place(reached.objective_ms * margin)
        assert again.objective_ms <= reached.objective_ms * 1.002


def test_a_layout_that_holds_no_such_sequence_makes_none() -> None:
    scheme = Scheme(tp=2)
    models = {scheme: SchemeModel(scheme, Latency(0.0, 1.0, 0.0), 10)}
    layout = LayoutSchemes.list_from_models(models)[0]
    batch = Batch.from_lengths([11])
    assert not layout.holds(batch)
    assert Constructive(layout, batch, 8).place(np.inf) is None


def test_with_stages_a_long_sequence_pays_for_its_bubble() -> None:
    # At prices of GPU-time alone it was 6 % above the bound over all strategies of the layout. If
    # forward takes no time, no order ends before form S, which it is constructed for.
    layout = schemes_of(8, 2, 512)
    batch = Batch.from_lengths(np.minimum(CODE[:600], 32768).tolist())
    placement = Constructive(layout, batch, 512).place(np.inf)
    assert_sound(placement.fleet, batch, placement.filling)
    models = {s: replace(model, forward_fraction=0.0) for s, model in layout.models.items()}
    every_strategy = AllStrategies(models, 512)
    bound = all_strategies_bound_ms(every_strategy, batch, placement.objective_ms)
    assert placement.objective_ms < 1.03 * bound
