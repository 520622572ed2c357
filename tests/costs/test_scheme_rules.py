"""Coefficients that contradict each other are doubted; flagged ones have been explained."""

from collections.abc import Mapping

from seqplan import Profile, Scheme
from seqplan.costs.scheme_rules import doubts, list_usual_context
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped


def with_quadratic(a: Mapping[int, float], flag: int | None = None) -> Profile:
    """A profile whose schemes are tp → a; ``flag``: the tp whose scheme is flagged."""
    schemes = [
        {"tp": tp, "a": value, "b": 0.1, "c": 1, **({"flag": "odd"} if tp == flag else {})}
        for tp, value in a.items()
    ]
    document = {**load_shipped("llama-32b-a800-80gb").document, "schemes": schemes}
    return Profile.from_document(document, "made")


def test_consistent_coefficients_are_not_doubted() -> None:
    assert doubts(with_quadratic({1: 8e-6, 2: 4e-6, 4: 2e-6, 8: 1.9e-6}).schemes) == {}


def test_coefficients_far_from_the_others_are() -> None:
    doubtful = doubts(with_quadratic({1: 8e-6, 2: 4e-6, 4: 2e-6, 8: 3e-6, 16: 0.1e-6}).schemes)
    assert list(doubtful) == [Scheme(tp=8), Scheme(tp=16)]
    assert doubtful[Scheme(tp=8)].startswith("a·gpus is 3 times the median")
    assert doubtful[Scheme(tp=16)].startswith("a·gpus is 0.2 times the median")


def test_flagged_schemes_neither_count_nor_are_named() -> None:
    assert doubts(with_quadratic({1: 8e-6, 2: 4e-6, 4: 2e-6, 8: 3e-6}, flag=8).schemes) == {}


def test_two_schemes_raise_no_doubt() -> None:
    assert doubts(with_quadratic({1: 8e-6, 8: 9e-6}).schemes) == {}


def test_doubts_about_shipped_profiles() -> None:
    doubtful = {
        name: [str(scheme) for scheme in doubts(load_shipped(name).schemes)]
        for name in list_shipped()
    }
    assert {name: schemes for name, schemes in doubtful.items() if schemes} == {
        "llama-32b-a800-80gb": ["pp4", "tp2"]
    }


def test_long_rings_are_of_whole_nodes_and_a_quarter_of_the_cluster() -> None:
    def longest(tp: int, ulysses: int, gpus: int) -> int:
        schemes = list_usual_context(tp, 1, gpus, gpus_per_node=8)
        return max(scheme.ring for scheme in schemes if scheme.ulysses == ulysses)

    assert [longest(1, 8, gpus) for gpus in (64, 128, 256, 1024, 10_000)] == [2, 4, 8, 32, 64]
    assert [longest(8, 1, gpus) for gpus in (64, 256, 1024)] == [8, 8, 32]
    assert longest(1, 1, 10_000) == longest(4, 1, 10_000) == 8
    assert longest(16, 1, 10_000) == 8  # over two nodes
    assert all(scheme.gpus <= 64 for scheme in list_usual_context(8, 2, 64, gpus_per_node=8))
