"""The estimated profiles that ship are derived by the model, and state it."""

from __future__ import annotations

import json

import pytest

from seqplan.costs.derived.shipped_estimates import document_of, names, text_of
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans.scheme import Scheme


def test_all_of_them_ship() -> None:
    assert len(names()) == 12
    assert set(names()) <= set(list_shipped())


@pytest.mark.parametrize("name", ["llama3-70b-h100-80gb", "qwen3-30b-a3b-h100-80gb"])
def test_shipped_profiles_equal_derived_ones(name: str) -> None:
    """To a thousandth: the last digits, and where the fit of coefficients ends, vary."""
    derived, document = document_of(name), dict(load_shipped(name).document)
    assert json.loads(text_of(derived)) == derived
    for entry, shipping in zip(derived["schemes"], document["schemes"], strict=True):
        for mode, coefficients in shipping["modes"].items():
            assert entry["modes"].pop(mode) == pytest.approx(coefficients, rel=1e-3, abs=1e-12)
        assert entry == {**shipping, "modes": {}}
    for mode, shipping in zip(derived["modes"], document["modes"], strict=True):
        assert mode["name"] == shipping["name"]
        for kind in ("kept_bytes_per_token", "transient_bytes_per_token"):
            assert mode[kind] == pytest.approx(shipping[kind])
    for name, amount in document["memory"].items():
        assert derived["memory"][name] == (
            amount if name == "sharded_state_bytes" else pytest.approx(amount)
        )
    left_out = {"schemes": [], "memory": {}, "modes": []}
    assert {**derived, **left_out} == {**document, **left_out}


@pytest.mark.parametrize("name", names())
def test_each_states_that_it_is_derived_and_its_error(name: str) -> None:
    profile = load_shipped(name)
    assert {entry.origin for entry in profile.schemes} == {"derived"}
    assert profile.shape.sizes == ModelSizes.from_mapping(MODELS[name.rpartition("-h")[0]])
    notes = profile.document["notes"]
    assert any(note.startswith("expected error: 4% (median) and 9% (p90)") for note in notes)
    assert any("unchecked: that h200-141gb" in note for note in notes) == ("h200" in name)
    experts = "a3b" in name or "oss" in name
    assert any(note.startswith("unchecked: experts") for note in notes) == experts
    assert [mode.name for mode in profile.modes] == [
        "none", "attention_core", "elementwise", "half_products", "mlp", "full"
    ]  # fmt: skip
    assert any(entry.scheme.ulysses > 1 and entry.scheme.ring > 1 for entry in profile.schemes)


def test_larger_memory_holds_more_schemes_and_longer_sequences() -> None:
    small, large = (load_shipped(f"llama3-70b-{device}") for device in ("h100-80gb", "h200-141gb"))
    # On the smaller memory also deep pipelines, which it needs.
    assert {scheme for scheme in small.by_scheme if scheme.pp <= 2} < set(large.by_scheme)
    assert max(scheme.pp for scheme in small.by_scheme) == 8
    scheme = Scheme(tp=4, pp=2, ring=8)
    longest = [p.model(p.by_scheme[scheme], 64, 1).max_len for p in (small, large)]
    assert 100_000 < longest[0] < longest[1]
