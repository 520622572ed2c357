"""Coefficients that contradict each other are doubted; flagged ones have been explained."""

from collections.abc import Mapping

from seqplan import Profile, Scheme
from seqplan.costs.scheme_rules import doubts
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
