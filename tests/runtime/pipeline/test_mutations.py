"""Faults that others have shipped, put in on purpose: each must be seen by the gates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import run_ranks
from staged_runs import CONFIG, GATES, Case, Outcome, differences, staged

from seqplan.plans.views.parameter_layout import ParameterLayout
from seqplan.plans.views.sharding import Range
from seqplan.runtime.pipeline import staged_llama
from seqplan.runtime.pipeline.llama_units import list_units
from seqplan.runtime.pipeline.one_f_one_b import PipelinePasses
from seqplan.runtime.states.sync import Finish, MessageSync
from seqplan.runtime.states.unit import Unit

CASE = Case(4, 18, config=replace(CONFIG, heads=4, kv_heads=1, layers=3), steps=1)
"""One key head, which all tp ranks have a copy of; tp and pp in the first step."""

STALE = "stale parameters"


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def norms_as_equal() -> Iterator[None]:
    """As if every tp rank had seen all rows."""

    def units(config: Any, experts: int) -> Any:
        return [
            (name, [replace(p, gradient="equal") if p.vector else p for p in parameters])
            for name, parameters in list_units(config, experts)
        ]

    with patch.object(staged_llama, "list_units", units):
        yield


@contextmanager
def one_copy_of_a_key_head() -> Iterator[None]:
    """As if copies of a key head had seen the same queries."""
    whole = ParameterLayout.contributing_ranges

    def contributed(parameter: ParameterLayout, tp: int, tp_rank: int) -> tuple[Range, ...]:
        ranges = whole(parameter, tp, tp_rank)
        return ranges[:1] if "qkv" in parameter.name and tp_rank else ranges

    with patch.object(ParameterLayout, "contributing_ranges", contributed):
        yield


@contextmanager
def loss_on_every_tp_rank() -> Iterator[None]:
    begin = PipelinePasses.__init__

    def counting(passes: PipelinePasses, view: Any, *rest: Any, **options: Any) -> None:
        begin(passes, replace(view, at=replace(view.at, tp=0)), *rest, **options)

    with patch.object(PipelinePasses, "__init__", counting):
        yield


@contextmanager
def a_unit_not_reduced() -> Iterator[None]:
    reduce = MessageSync.reduce_scatter

    def forgetful(sync: MessageSync, unit: Unit, **options: bool) -> Finish:
        if unit.name == "layers.1":
            unit.gradient.zero_()
        return reduce(sync, unit, **options)

    with patch.object(MessageSync, "reduce_scatter", forgetful):
        yield


@contextmanager
def stale_parameters() -> Iterator[None]:
    """As if a unit kept what it was gathered as in the first step."""
    gather = MessageSync.all_gather
    first: dict[str, torch.Tensor] = {}

    def stale(sync: MessageSync, unit: Unit) -> Finish:
        if unit.name != "layers.2":
            return gather(sync, unit)
        master = unit.master
        unit.master = first.setdefault(unit.name, master.clone())
        finish = gather(sync, unit)
        unit.master = master
        return finish

    with patch.object(MessageSync, "all_gather", stale):
        yield


MUTATIONS: dict[str, Callable[[], Any]] = {
    "none": nothing,
    "norms reduced as equal": norms_as_equal,
    "one copy of a key head reduced": one_copy_of_a_key_head,
    "loss counted on every tp rank": loss_on_every_tp_rank,
    "a unit not reduced": a_unit_not_reduced,
    STALE: stale_parameters,
}


def case_of(mutation: str) -> Case:
    """Stale values of the second step change the third; other errors show at once."""
    return replace(CASE, steps=3) if mutation in ("none", STALE) else CASE


def all_mutations(rank: int, world_size: int) -> dict[str, Outcome]:
    outcomes = {}
    for name, mutation in MUTATIONS.items():
        with mutation():
            outcomes[name] = staged(rank, world_size, case_of(name))
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    return run_ranks(all_mutations, CASE.ranks, timeout_s=150)


def test_the_case_exercises_the_faults() -> None:
    first, *_ = CASE.plans()
    schemes = [pipeline.scheme for pipeline in first.pipelines if pipeline.micro_batches]
    assert any(scheme.tp > 1 for scheme in schemes)
    assert any(scheme.pp > 1 for scheme in schemes)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_fault_fails_the_gates(outcomes: list[dict[str, Outcome]], mutation: str) -> None:
    worst = differences(case_of(mutation), [outcome[mutation] for outcome in outcomes])
    within = all(error <= gate for error, gate in zip(worst, GATES[CASE.dtype], strict=True))
    assert within == (mutation == "none"), worst
