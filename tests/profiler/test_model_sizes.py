"""Which schemes a model can run."""

from __future__ import annotations

import pytest

from seqplan.plans.scheme import Scheme
from seqplan.profiler.model_sizes import ModelShape
from seqplan.profiler.scheme_rules import scheme_problem

GROUPED = ModelShape(hidden=4096, layers=30, heads=24, kv_heads=6)
UNKNOWN = ModelShape(hidden=4096, layers=30)


@pytest.mark.parametrize(
    "scheme",
    ["tp1", "tp2", "tp3", "tp6", "tp12", "tp24", "u6", "tp2.u3", "pp5", "pp30", "r7"],
)
def test_schemes_that_can_run(scheme: str) -> None:
    assert scheme_problem(Scheme.parse(scheme), GROUPED) is None


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        ("tp5", "tp·ulysses = 5 does not divide the 24 attention heads"),
        ("tp2.u5", "tp·ulysses = 10 does not divide the 24 attention heads"),
        ("u48", "tp·ulysses = 48 does not divide the 24 attention heads"),
        ("tp4", "tp = 4 neither divides nor replicates 6 KV heads"),
        ("u8", "tp·ulysses = 8 neither divides nor replicates 6 KV heads"),
        ("tp2.u2", "tp·ulysses = 4 neither divides nor replicates 6 KV heads"),
        ("pp4", "pp = 4 does not divide the 30 layers"),
    ],
)
def test_schemes_that_cannot(scheme: str, problem: str) -> None:
    assert scheme_problem(Scheme.parse(scheme), GROUPED) == problem


def test_layers_are_checked_where_heads_are_unknown() -> None:
    assert scheme_problem(Scheme.parse("u7.tp11"), UNKNOWN) is None
    assert scheme_problem(Scheme.parse("pp7"), UNKNOWN) == "pp = 7 does not divide the 30 layers"


def test_nodes_are_checked_when_asked() -> None:
    scheme = Scheme.parse("tp24")
    assert scheme_problem(scheme, GROUPED) is None
    assert scheme_problem(scheme, GROUPED, gpus_per_node=8) == "tp = 24 spans nodes of 8 GPUs"
    assert scheme_problem(Scheme.parse("tp6"), GROUPED, gpus_per_node=8) is None
