"""Derived profiles: accepted, deterministic, near their terms; and completing measured ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from deployments import SCHEMES, deploy, profile_of, read_terms

from seqplan import Profile, Scheme
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware_file import read_hardware
from seqplan.costs.analytic.gpus.profiled_device import hardware_of
from seqplan.costs.analytic.memory import (
    count_kept_bytes,
    count_transfer_bytes,
    peak_bytes,
    usable_bytes,
)
from seqplan.costs.analytic.rederive import rederive_profile
from seqplan.costs.fit.latency_fit import Errors
from seqplan.costs.fit.refit import Refitted, write_refit
from seqplan.costs.profiled_scheme import BUFFER, ProfileError

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


def test_a_profile_states_the_values_of_its_device_file(tmp_path: Path) -> None:
    file = tmp_path / "ours.json"
    values = {"memory_gib": 40, "peak_tflops": 200, "inter_gb_s": 5, "inter_rails": 2}
    file.write_text(json.dumps({"base": "a800-80gb", **values}))
    device = read_hardware(file)
    ours = replace(DEPLOYMENT, cluster=replace(DEPLOYMENT.cluster, hardware=device))
    profile = profile_of(derive_profile(ours, SCHEMES, name="ours"))
    assert hardware_of(profile) == device
    listed = profile_of(derive_profile(DEPLOYMENT, SCHEMES, name="listed"))
    assert "values" not in listed.document["hardware"]
    again = rederive_profile(profile, 3, 16, lambda scheme: scheme.tp == 1)
    assert again.memory.capacity_bytes == profile.memory.capacity_bytes < 41 * 2**30
    assert hardware_of(again) == device


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_coefficients_are_near_the_terms(scheme: Scheme) -> None:
    latency = profile_of(derive_profile(DEPLOYMENT, [scheme], name="x")).by_scheme[scheme].latency
    for length in (1024, 8192, 65536):
        whole = sum(read_terms(DEPLOYMENT, scheme, [length], 16 // scheme.gpus).values())
        assert latency.micro_batch_ms([length]) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("stack", ["compiled", "eager"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("scheme", [Scheme(), Scheme(ulysses=8), Scheme(ulysses=4, ring=2)])
def test_max_len_is_where_the_estimate_stops_to_fit(
    zero: int, scheme: Scheme, recompute: str, stack: str
) -> None:
    deployment = replace(DEPLOYMENT, zero=zero, recompute=recompute, stack=stack)
    profile = profile_of(derive_profile(deployment, [scheme], name="x"))
    tokens = profile.model(profile.by_scheme[scheme], 16, 1).max_len
    dp = 16 // scheme.gpus

    def fits(share: float) -> bool:
        peak = peak_bytes(deployment, scheme, dp, tokens * share)
        return sum(peak.values()) <= usable_bytes(DEVICES["a800-80gb"].memory_bytes)

    if tokens == 0:
        assert not fits(1.0)
        return
    assert fits(0.999)
    assert not fits(1.001)


def test_buffers_of_transfers_stay_with_their_mode_and_scheme() -> None:
    """Their bytes per token: of a ring K, V and gradients; of eager Ulysses what it exchanges."""
    deployment = replace(DEPLOYMENT, stack="eager")
    schemes = [Scheme(), Scheme(ulysses=8), Scheme(ring=2)]
    document = derive_profile(deployment, schemes, name="x", modes=("none", "full"))
    profile = profile_of(document)
    width = DEPLOYMENT.sizes.hidden  # as many key heads as query heads
    for whole in (profile, profile_of(write_refit(profile, scale(profile, 2.0), "x"))):
        buffers = {scheme: whole.by_scheme[scheme].buffers for scheme in schemes}
        ring = (12 * width, 12 * width)
        assert buffers == dict(zip(schemes, [(), (0, 10 * width), ring], strict=True))
        full = whole.keep_modes(["full"])
        assert full.by_scheme[Scheme(ulysses=8)].buffers == (10 * width,)
        assert full.model(full.by_scheme[Scheme(ring=2)], 16, 1).max_len == (
            whole.model(whole.by_scheme[Scheme(ring=2)], 16, 1).max_len
        )
    gathered = replace(deployment, context_parallel="all-gather")
    ring = profile_of(derive_profile(gathered, [Scheme(ring=8)], name="x")).schemes[0]
    assert ring.buffers == (8 * 12 * width,)
    document["schemes"][1]["modes"]["none"][BUFFER] = -1
    with pytest.raises(
        ProfileError, match=r"modes\.none\.buffer_bytes_per_token: must be a number from 0 to"
    ):
        profile_of(document)


def test_copied_key_heads_are_counted() -> None:
    """Eight ranks that split four key heads hold eight: in a block of tp, or after Ulysses."""
    few, many = (
        replace(DEPLOYMENT, sizes=replace(DEPLOYMENT.sizes, kv_heads=heads)) for heads in (4, 8)
    )
    kept_bytes = [count_kept_bytes(deployment, 8) for deployment in (few, many)]
    assert kept_bytes[0] == kept_bytes[1] > count_kept_bytes(few, 4)
    sizes = few.sizes
    copies = 2 * 2 * 4 * sizes.head_width
    for scheme, copied in ((Scheme(ulysses=4), 0), (Scheme(ulysses=8), copies)):
        assert count_transfer_bytes(few, scheme) == copied * sizes.layers
        assert count_transfer_bytes(replace(few, recompute="full"), scheme) == copied
    ring = Scheme(tp=2, ulysses=4, ring=2)
    received = [count_transfer_bytes(deployment, ring) for deployment in (few, many)]
    assert received[0] == received[1] + copies * sizes.layers


def scale(profile: Profile, factor: float) -> list[Refitted]:
    """Refits of a profile that make each scheme so much slower in each mode."""
    none = Errors(0, None, None, None)
    return [
        Refitted(
            entry.scheme,
            *(none, Errors(4, 0.01, 0.01, 0.01), "scaled", "slower"),
            entry.latency.scale(factor),
            {name: latency.scale(factor) for name, latency in entry.modes.items()},
        )
        for entry in profile.schemes
    ]


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
