"""Heads of another width than hidden/heads, and tied embeddings, in every part of the model."""

from dataclasses import replace

import pytest
from deployments import deploy, read_terms

from seqplan import Profile, Scheme
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.estimate import Load, estimate, model_flops
from seqplan.costs.analytic.memory import layer_activation_bytes
from seqplan.costs.model_sizes import ModelSizes

NARROW = ModelSizes(hidden=5120, layers=64, heads=64, kv_heads=8, ffn=25600, vocab=151936)
WIDE = replace(NARROW, head_dim=160)
"""Twice 5120/64."""

CLUSTER = deploy(NARROW).cluster


def terms(sizes: ModelSizes, scheme: str) -> dict[str, float]:
    return read_terms(deploy(sizes), scheme, [32768])


def test_stating_the_default_width_changes_nothing() -> None:
    deployments = [deploy(sizes) for sizes in (NARROW, replace(NARROW, head_dim=80, tied=False))]
    schemes = [Scheme(), Scheme(tp=8), Scheme(ulysses=4, ring=2)]
    first, second = (derive_profile(deployment, schemes, name="p") for deployment in deployments)
    assert first == second


def test_attention_takes_twice_as_much_and_products_more() -> None:
    narrow, wide = terms(NARROW, "u4.r2"), terms(WIDE, "u4.r2")
    assert wide["attention"] == pytest.approx(2 * narrow["attention"])
    assert wide["ulysses"] > 1.9 * narrow["ulysses"]
    assert narrow["matrix products"] < wide["matrix products"] < 1.3 * narrow["matrix products"]
    assert wide["memory-bound"] > narrow["memory-bound"]
    for name in ("tp communication", "head and loss", "launch"):
        assert wide[name] == narrow[name]


def test_activations_keep_wide_queries_keys_values_and_results() -> None:
    more = layer_activation_bytes(WIDE, "none", 1) - layer_activation_bytes(NARROW, "none", 1)
    assert more == 2 * (2 * 5120 + 2 * 640)  # bf16: q and the result; k and v


def test_flops_count_wide_attention() -> None:
    length = 1024
    attention = 0.5 * 12 * 64 * 5120 * length**2
    products = 6 * 64 * (2 * 5120 * (5120 + 640)) * length
    more = model_flops(WIDE, length) - model_flops(NARROW, length)
    assert more == pytest.approx(attention + products)


def test_tied_embeddings_take_less_memory_and_sync_on_one_stage_only() -> None:
    tied = replace(NARROW, tied=True)
    saved_parameters = NARROW.vocab * NARROW.hidden

    def estimated(sizes: ModelSizes, scheme: str) -> tuple[float, float]:
        result = estimate(deploy(sizes), Scheme.parse(scheme), Load(seq_len=8192, batch=8))
        return (result.memory_bytes["parameters and gradients"], result.terms_ms["parameter sync"])

    held, synchronized = estimated(NARROW, "tp8")
    held_tied, tied_synced = estimated(tied, "tp8")
    assert held - held_tied == pytest.approx(6 * saved_parameters / 8)
    assert tied_synced < synchronized
    # The first stage holds the embedding and the last one its copy: nothing is saved.
    held, synchronized = estimated(NARROW, "tp4.pp2")
    held_tied, tied_synced = estimated(tied, "tp4.pp2")
    assert held_tied == pytest.approx(held, rel=1e-5)
    assert tied_synced == synchronized


def test_a_profile_keeps_both_and_its_memory_model_knows_them() -> None:
    deployment = deploy(replace(WIDE, tied=True))
    schemes = [Scheme(tp=8), Scheme(tp=4, pp=2)]
    document = derive_profile(deployment, schemes, name="p")
    assert document["model"]["head_dim"] == 160
    assert document["model"]["tied"] is True
    profile = Profile.from_document(document, "p")
    assert (profile.shape.head_dim, profile.shape.tied) == (160, True)
    states = profile.memory.count_fixed_bytes(Scheme(pp=2), 16, 0)
    untied = replace(profile.memory, tied=False).count_fixed_bytes(Scheme(pp=2), 16, 0)
    assert states - untied == profile.memory.resident_embedding_bytes / 2
