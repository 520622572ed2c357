"""Derived profiles: accepted, deterministic, near their terms; and completing measured ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.complete import complete
from seqplan.profiler.analytic.derive import derive_profile
from seqplan.profiler.analytic.hardware import DEVICES, ClusterHardware
from seqplan.profiler.analytic.memory import peak_bytes, usable_bytes
from seqplan.profiler.analytic.terms import Deployment, stage_terms
from seqplan.profiler.model_sizes import MODELS, ModelSizes
from seqplan.profiler.profile import Profile
from seqplan.profiler.shipped.catalogue import shipped

DEPLOYMENT = Deployment(
    cluster=ClusterHardware(DEVICES["a800-80gb"], 2, 8), sizes=ModelSizes.of(MODELS["llama-7b"])
)
SCHEMES = [Scheme.parse(text) for text in ("tp1", "tp4", "tp2.pp2", "u8", "u4.r2", "u8.r2")]


def profile_of(document: dict[str, Any]) -> Profile:
    return Profile.from_json(json.dumps(document), "derived")


def test_a_derived_profile_is_a_profile() -> None:
    profile = profile_of(derive_profile(DEPLOYMENT, SCHEMES, name="llama"))
    assert sorted(profile.by_scheme) == sorted(SCHEMES)
    assert {entry.origin for entry in profile.schemes} == {"derived"}
    assert profile.source.startswith("derived: ")
    assert profile.residuals.startswith("derived: ")
    assert profile.zero_stage == 1


def test_the_same_settings_give_the_same_bytes() -> None:
    first, again = (json.dumps(derive_profile(DEPLOYMENT, SCHEMES, name="x")) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_coefficients_are_near_the_terms(scheme: Scheme) -> None:
    latency = profile_of(derive_profile(DEPLOYMENT, [scheme], name="x")).by_scheme[scheme].latency
    for length in (1024, 8192, 65536):
        terms = stage_terms(DEPLOYMENT, scheme, [length], 16 // scheme.gpus)
        whole = sum(float(value) for value in terms.values())
        assert latency.micro_batch_ms([length]) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("scheme", [Scheme(), Scheme(ulysses=8), Scheme(ulysses=4, ring=2)])
def test_max_len_is_where_the_estimate_stops_to_fit(zero: int, scheme: Scheme) -> None:
    deployment = replace(DEPLOYMENT, zero=zero)
    profile = profile_of(derive_profile(deployment, [scheme], name="x"))
    tokens = profile.model(profile.by_scheme[scheme], 16, 1).max_len
    dp = 16 // scheme.gpus

    def fits(share: float) -> bool:
        peak = peak_bytes(deployment, scheme, dp, tokens * share)
        return sum(peak.values()) <= usable_bytes(DEVICES["a800-80gb"].memory_bytes)

    if tokens == 0:
        assert not fits(1.0)
        return
    assert fits(0.95)
    assert not fits(1.05)


def test_zero_3_derives_sequence_parallel_schemes_only() -> None:
    deployment = replace(DEPLOYMENT, zero=3)
    assert profile_of(derive_profile(deployment, [Scheme(ulysses=8)], name="x")).rounds
    with pytest.raises(ValueError, match="tp2: under ZeRO-3"):
        derive_profile(deployment, [Scheme(tp=2)], name="x")


def test_what_cannot_be_derived_says_why() -> None:
    with pytest.raises(ValueError, match="u32: needs 32 GPUs, the cluster has 16"):
        derive_profile(DEPLOYMENT, [Scheme(ulysses=32)], name="x")
    with pytest.raises(ValueError, match="does not divide the 32 attention heads"):
        derive_profile(DEPLOYMENT, [Scheme(ulysses=3)], name="x")
    with pytest.raises(ValueError, match="no scheme"):
        derive_profile(DEPLOYMENT, [], name="x")
    with pytest.raises(ValueError, match="longest 100: wants at least 512"):
        derive_profile(DEPLOYMENT, SCHEMES, name="x", longest=100)


def measured(slower: float) -> Profile:
    """A profile of one device that is ``slower`` times as slow as the model says."""
    document = derive_profile(DEPLOYMENT, [Scheme()], name="measured")
    for entry in document["schemes"]:
        entry.update({name: slower * entry[name] for name in "abc"}, origin="measured")
    return profile_of(document)


def test_completing_keeps_what_was_measured_and_adds_the_rest() -> None:
    profile = measured(1.0)
    document = complete(profile, DEPLOYMENT.cluster, SCHEMES)
    completed = profile_of(document)
    assert completed.by_scheme[Scheme()] == profile.by_scheme[Scheme()]
    assert sorted(completed.by_scheme) == sorted(SCHEMES)
    assert {entry.origin for entry in completed.schemes if entry.scheme != Scheme()} == {"derived"}
    assert any("Schemes marked derived" in note for note in document["notes"])
    # On a device as fast as the model says, they are those of a derived profile.
    derived = profile_of(derive_profile(DEPLOYMENT, SCHEMES, name="x"))
    for scheme in SCHEMES:
        for length in (2048, 32768):
            assert completed.by_scheme[scheme].latency.micro_batch_ms([length]) == pytest.approx(
                derived.by_scheme[scheme].latency.micro_batch_ms([length]), rel=0.06
            )
    assert completed.memory.activation_bytes_per_token == derived.memory.activation_bytes_per_token


def test_a_slower_device_computes_slower_but_sends_as_fast() -> None:
    scheme = Scheme(ulysses=8, ring=2)
    fast, slow = (
        profile_of(complete(measured(slower), DEPLOYMENT.cluster, [scheme]))
        .by_scheme[scheme]
        .latency
        for slower in (1.0, 2.0)
    )
    for length in (8192, 65536):
        ratio = slow.micro_batch_ms([length]) / fast.micro_batch_ms([length])
        terms = stage_terms(DEPLOYMENT, scheme, [length])
        sent = sum(float(terms[name]) for name in ("ulysses", "ring transfer", "ring merge"))
        share = sent / sum(float(value) for value in terms.values())
        assert ratio == pytest.approx(2 - share, rel=0.05)
        assert ratio < 1.98


def test_what_is_shared_shrinks_also_where_the_model_sees_launches_only() -> None:
    """A tiny model on a CPU: on the cluster's devices launching would be most of its time."""
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
    deployment = Deployment(cluster=DEPLOYMENT.cluster, sizes=ModelSizes.of(sizes))
    document = derive_profile(deployment, [Scheme()], name="measured", longest=4096)
    document["schemes"][0].update(a=4e-5, b=0.05, c=10.0, origin="measured")
    four = Scheme(ulysses=4)
    completed = profile_of(complete(profile_of(document), deployment.cluster, [four], longest=4096))
    alone, shared = (completed.by_scheme[scheme].latency for scheme in (Scheme(), four))
    assert shared.micro_batch_ms([4096]) < 0.5 * alone.micro_batch_ms([4096])
    # What is paid once a micro-batch is not shared.
    assert shared.micro_batch_ms([128]) > 0.5 * alone.micro_batch_ms([128])


def test_completing_wants_one_device_and_all_sizes() -> None:
    with pytest.raises(ValueError, match="has no scheme tp1 to derive others from"):
        complete(shipped("llama-7b-a800-80gb"), DEPLOYMENT.cluster, SCHEMES)
    with pytest.raises(ValueError, match="does not state the model's heads, kv_heads, ffn, vocab"):
        complete(shipped("gpt-7b-a100-40gb"), DEPLOYMENT.cluster, SCHEMES)
    profile = measured(1.0)
    assert complete(profile, DEPLOYMENT.cluster, [Scheme()]) == profile.document
