"""Derived profiles: accepted, deterministic, near their terms; and completing measured ones."""

import json
from dataclasses import replace

import pytest
from deployments import SCHEMES, deploy, profile_of, read_terms

from seqplan import Scheme
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.memory import peak_bytes, usable_bytes

DEPLOYMENT = deploy("llama-7b")


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
        whole = sum(read_terms(DEPLOYMENT, scheme, [length], 16 // scheme.gpus).values())
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
    assert profile_of(derive_profile(deployment, [Scheme(ulysses=8)], name="x")).lockstep
    with pytest.raises(ValueError, match="tp2: under ZeRO-3"):
        derive_profile(deployment, [Scheme(tp=2)], name="x")


def test_underivable_profiles_are_rejected_with_the_reason() -> None:
    with pytest.raises(ValueError, match="u32: needs 32 GPUs, the cluster has 16"):
        derive_profile(DEPLOYMENT, [Scheme(ulysses=32)], name="x")
    with pytest.raises(ValueError, match="does not divide the 32 attention heads"):
        derive_profile(DEPLOYMENT, [Scheme(ulysses=3)], name="x")
    with pytest.raises(ValueError, match="no scheme"):
        derive_profile(DEPLOYMENT, [], name="x")
    with pytest.raises(ValueError, match="longest 100: must be at least 512"):
        derive_profile(DEPLOYMENT, SCHEMES, name="x", longest=100)
