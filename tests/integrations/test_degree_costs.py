"""Costs by degree: a profile's rings, the environment's, and unknown degrees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from seqplan import Cost
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.integrations.degree_costs import (
    add_padding,
    by_degree,
    costs_of_environment,
    ring_costs,
)
from seqplan.integrations.megatron import _alignment


def test_degrees_are_powers_of_two_that_divide_and_the_whole() -> None:
    costs = by_degree(Cost(1.0, 2.0, 3.0), 12)
    assert costs == {
        1: Cost(1.0, 2.0, 3.0),
        2: Cost(0.5, 1.0, 3.0),
        4: Cost(0.25, 0.5, 3.0),
        12: Cost(1 / 12, 2 / 12, 3.0),
    }
    assert set(by_degree(Cost(1.0, 2.0, 3.0), 8, smallest=4)) == {4, 8}


def test_a_degree_that_is_not_known_divides_the_next_smaller_one() -> None:
    costs = by_degree({1: Cost(1.0, 2.0, 3.0), 2: Cost(0.6, 1.2, 4.0)}, 8)
    assert costs[2] == Cost(0.6, 1.2, 4.0)
    assert costs[8] == Cost(0.15, 0.3, 4.0)
    with pytest.raises(ValueError, match="that of one rank is missing"):
        by_degree({2: Cost(1.0, 1.0, 1.0)}, 8)


def test_rings_of_a_profile() -> None:
    profile = find_profile("llama-7b-a800-80gb")
    rings = {e.scheme.ring for e in profile.schemes if (e.scheme.tp, e.scheme.sp) == (2, 1)}
    assert rings == {1}
    costs = ring_costs(profile, "tp2")
    assert costs[1] == Cost.from_profile(profile, "tp2")
    with pytest.raises(ValueError, match="no scheme tp3"):
        ring_costs("llama-7b-a800-80gb", "tp3")


def test_costs_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEQPLAN_PROFILE", "SEQPLAN_SCHEME", "SEQPLAN_COST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no costs: set SEQPLAN_PROFILE and SEQPLAN_SCHEME"):
        costs_of_environment()
    monkeypatch.setenv("SEQPLAN_PROFILE", "llama-7b-a800-80gb")
    monkeypatch.setenv("SEQPLAN_SCHEME", "tp2")
    assert costs_of_environment()[1] == Cost.from_profile("llama-7b-a800-80gb", "tp2")
    monkeypatch.setenv("SEQPLAN_COST", "2e-6,0.1,60")
    assert costs_of_environment() == {1: Cost(2e-6, 0.1, 60.0)}
    monkeypatch.setenv("SEQPLAN_COST", "2e-6,fast")
    with pytest.raises(ValueError, match="SEQPLAN_COST='2e-6,fast': must be a,b,c"):
        costs_of_environment()


def test_padding_of_packed_micro_batches_is_priced() -> None:
    costs = {1: Cost(1e-6, 0.1, 60.0), 4: Cost(2.5e-7, 0.03, 65.0)}
    assert add_padding(costs, 1) == costs
    padded = add_padding(costs, 1025)
    assert padded[1].c == 60.0 + 0.1 * 512
    assert padded[4].c == 65.0 + 0.03 * 4 * 512
    scheduler = SimpleNamespace(max_seqlen_per_dp_cp_rank=8192)
    assert _alignment(scheduler) == 1
    scheduler.config = SimpleNamespace(pad_packed_seq_alignment=128)
    assert _alignment(scheduler) == 128
    scheduler.config.cuda_graph_impl = "local"
    assert _alignment(scheduler) == 8192
