"""The estimated profiles that ship are derived by the model, and state it."""

import json
import re

import pytest

from seqplan.costs.derived.shipped_estimates import EXPERT_DEGREES, document_of, names, text_of
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans.scheme import Scheme


def test_all_of_them_ship() -> None:
    assert len(names()) == 8 + 15
    assert set(names()) <= set(list_shipped())


@pytest.mark.parametrize("name", ["llama3-70b-h100-80gb", "deepseek-v3-h100-80gb"])
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
    device = re.findall(r"[hb][0-9]+-[0-9]+gb", name)[-1]
    model = name.removesuffix(f"-{device}")
    assert profile.shape == ModelSizes.from_mapping(MODELS[model]).shape
    notes = profile.document["notes"]
    experts = model in EXPERT_DEGREES
    expected = "8 % (median) and 20 % (p90)" if experts else "4 % (median) and 9 % (p90)"
    assert any(note.startswith(f"expected error: {expected}") for note in notes)
    assert any(f"unchecked: that {device}" in note for note in notes) == (device[:4] != "h100")
    assert any(note.startswith("unchecked: experts") for note in notes) == experts
    assert [mode.name for mode in profile.modes] == [
        "none", "attention_core", "elementwise", "half_products", "mlp", "full"
    ]  # fmt: skip
    assert any(entry.scheme.ulysses > 1 and entry.scheme.ring > 1 for entry in profile.schemes)


def test_profiles_of_experts_have_the_degrees_that_fit() -> None:
    profile = load_shipped("qwen3-30b-a3b-h100-80gb")
    assert profile.expert_degrees == EXPERT_DEGREES["qwen3-30b-a3b"]
    # tp1 holds the experts of a block, but not all of them.
    of_one = {scheme.tp for scheme in profile.at_expert_parallel(1).by_scheme}
    of_eight = {scheme.tp for scheme in profile.at_expert_parallel(8).by_scheme}
    assert min(of_eight) == 1 < min(of_one)
    least = {"h100-80gb": 128, "h200-141gb": 64, "b200-180gb": 32}
    for device, degree in least.items():
        assert load_shipped(f"deepseek-v3-{device}").expert_degrees[0] == degree


def test_larger_memory_holds_more_schemes_and_longer_sequences() -> None:
    small, large = (load_shipped(f"llama3-70b-{device}") for device in ("h100-80gb", "h200-141gb"))
    # On the smaller memory also deep pipelines, which it needs.
    assert {scheme for scheme in small.by_scheme if scheme.pp <= 2} < set(large.by_scheme)
    assert max(scheme.pp for scheme in small.by_scheme) == 8
    scheme = Scheme(tp=4, pp=2, ring=8)
    longest = [p.model(p.by_scheme[scheme], 64, 1).max_len for p in (small, large)]
    assert 100_000 < longest[0] < longest[1]
