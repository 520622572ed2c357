"""Recomputation modes of a profile: read, restricted, evaluated and combined."""

import copy
import dataclasses
import json
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

import pytest
from deployments import deploy
from hypothesis import given
from hypothesis import strategies as st

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.profile import Profile, ProfileError
from seqplan.costs.profile_document import combine_modes, keep_modes
from seqplan.plans.recomputation import MODES, is_offloaded, join_mode, split_mode
from seqplan.plans.scheme import Scheme

DEPLOYMENT = deploy("llama3-8b", "h100-80gb", 1, loss="chunked")


@cache
def derive_all() -> dict[str, Any]:
    return derive_profile(DEPLOYMENT, [Scheme(), Scheme(tp=4)], name="all", modes=MODES)


@cache
def load_all() -> Profile:
    return Profile.from_document(derive_all(), "all")


def test_modes_are_listed_from_the_one_that_keeps_most() -> None:
    kept = [mode.kept[1] for mode in load_all().modes]
    assert kept == sorted(kept, reverse=True)
    assert {mode.name for mode in load_all().modes} == set(MODES)
    shares = load_all().forward_fraction
    assert isinstance(shares, dict)
    assert shares["none"] > shares["elementwise"] > shares["half_products"] > shares["full"]


def test_forward_s_share_is_that_of_the_modes_in_use() -> None:
    shares = load_all().forward_fraction
    assert isinstance(shares, dict)
    model = load_all().model(load_all().by_scheme[Scheme(tp=4)], 8, 131_072)
    assert model.forward_fraction == max(shares[mode.name] for mode in model.modes)
    only = model.find_mode("full")
    assert only.forward_fraction == shares["full"]


def test_models_have_the_modes_that_hold_more_at_a_higher_cost() -> None:
    model = load_all().model(load_all().by_scheme[Scheme(tp=4)], 8, 131_072)
    lengths = [mode.max_len for mode in model.modes]
    costs = [mode.latency.micro_batch_ms([8192]) for mode in model.modes]
    assert lengths == sorted(lengths)
    assert costs[0] == min(costs)
    assert model.max_len == lengths[-1]
    # A fused attention kernel keeps no scores: computing it again gains nothing.
    assert "attention_core" not in [mode.name for mode in model.modes]
    assert model.alone_ms(1024) == model.modes[0].latency.micro_batch_ms([1024])
    longest = lengths[0] + 1024
    assert model.alone_ms(longest) > model.modes[0].latency.micro_batch_ms([longest])


@pytest.mark.parametrize("name", MODES)
def test_a_profile_of_one_mode_is_the_derived_one(name: str) -> None:
    one = load_all().keep_modes({name})
    derived = derive_profile(DEPLOYMENT, [Scheme(), Scheme(tp=4)], name="all", modes=[name])
    assert one.mode_names == name
    for entry in derived["schemes"]:
        assert one.by_scheme[Scheme(tp=entry.get("tp", 1))].latency.a == entry["a"]
    assert one.document["memory"] == derived["memory"]
    assert load_all().with_digest(one.digest) == one


def test_modes_of_several_profiles_are_combined() -> None:
    names = ["full", "none", "elementwise"]
    combined, left_out = combine_modes([keep_modes(derive_all(), [name]) for name in names])
    assert left_out == []
    profile = Profile.from_document(json.loads(json.dumps(combined)), "combined")
    assert [mode.name for mode in profile.modes] == ["none", "elementwise", "full"]
    for entry in profile.schemes:
        for name, latency in entry.modes.items():
            assert latency == load_all().by_scheme[entry.scheme].modes[name]
    # A mode that keeps as much as one that recomputes less is of no use.
    twice = [keep_modes(derive_all(), ["none"]), keep_modes(derive_all(), ["mlp"])]
    twice[1]["memory"]["activation_bytes_per_token"]["1"] *= 100
    assert combine_modes(twice)[1] == ["mlp"]


def _changed(change: str) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(keep_modes(derive_all(), ["none", "mlp", "full"]))
    first, second, _ = document["modes"]
    if change == "order":
        document["modes"] = [second, first]
    elif change == "name":
        first["name"] = "some"
    elif change in ("one", "no"):
        document["modes"] = [first] if change == "one" else []
    elif change == "share":
        first["forward_fraction"] = 1.5
    elif change == "degrees":
        del first["transient_bytes_per_token"]["4"]
    elif change == "tp":
        for mode in document["modes"]:
            del mode["kept_bytes_per_token"]["4"], mode["transient_bytes_per_token"]["4"]
    elif change == "time":
        for key in "abc":
            document["schemes"][0]["modes"]["full"][key] /= 2
    elif change == "shareless":
        first["host_bytes_per_token"] = first["kept_bytes_per_token"]
    elif change == "hostless":
        second["name"] = "mlp+0.5"
        second["host_bytes_per_token"] = second["kept_bytes_per_token"]
    elif change == "nine":
        full = document["modes"].pop()
        more = [f"full+{share / 10:g}" for share in range(1, 8)]
        document["memory"]["host_memory_bytes"] = 1e9
        document["modes"] += [
            {**full, "name": name, "host_bytes_per_token": full["kept_bytes_per_token"]}
            for name in more
        ]
    elif change == "lacking":
        del document["schemes"][0]["modes"]["full"]
    else:
        document["recompute"] = "none"
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("order", r"modes\[1\] \(none\): keeps no fewer bytes than mlp before it"),
        ("name", r"modes\[0\].name: unknown recomputation mode: some. Give one of none, elem"),
        ("one", "must be at least two"),
        ("no", "must be at least two"),
        ("share", "must be a share between 0 and 1"),
        ("degrees", "bytes per token must be of the same degrees"),
        ("shareless", r"modes\[0\]: none offloads 0 % of layers. Leave out host_bytes_per_token"),
        ("hostless", r"modes\[1\] \(mlp\+0.5\): offloads layers. State memory.host_memory_bytes"),
        ("nine", "modes: must be at most 8: 9"),
        ("tp", "lacks tp = 4"),
        ("time", r"modes.full: 8,192 tokens take .* which recomputes less. Measure both again"),
        ("lacking", "full"),
        ("stated", "recompute: is stated by each of modes"),
    ],
)
def test_modes_that_contradict_each_other_are_rejected(change: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Profile.from_document(_changed(change), "changed")


def derive_offloading(host_memory_bytes: float, modes: list[str]) -> Profile:
    deployment = dataclasses.replace(DEPLOYMENT, host_memory_bytes=host_memory_bytes)
    document = derive_profile(deployment, [Scheme(), Scheme(pp=2)], name="host", modes=modes)
    return Profile.from_document(json.loads(json.dumps(document)), "host")


def test_offload_holds_more_until_the_host_is_full() -> None:
    modes = ["elementwise", "elementwise+0.5", "elementwise+1"]
    lengths = {}
    for gigabytes in (2, 60, 1000):
        profile = derive_offloading(gigabytes * 1e9, modes)
        for entry in profile.schemes:
            model = profile.model(entry, 8, 131_072)
            assert model.max_len == max(mode.max_len for mode in model.modes)
            assert model.modes[-1].max_len == model.max_len
            for known in model.modes:
                lengths[gigabytes, entry.scheme.pp, known.name] = known.max_len
            by_name = {mode.name: mode for mode in profile.modes}
            kept = by_name["elementwise"].kept[1]
            half, whole = by_name["elementwise+0.5"], by_name["elementwise+1"]
            assert half.kept[1] == half.host[1] == pytest.approx(kept / 2)
            assert (whole.kept[1], whole.host[1]) == (0, pytest.approx(kept))
            # The host's memory is of one GPU, whose stage holds layers/pp of pp micro-batches.
            for mode in (half, whole):
                longest = profile.memory.max_len(entry.scheme, 8, 131_072, mode.activation)
                fits = int(gigabytes * 1e9 / mode.host[1])
                of_host = profile.memory.max_len(
                    entry.scheme, 8, 131_072, mode.activation, mode.host[1]
                )
                assert of_host == min(longest, fits)
    plain = lengths[1000, 1, "elementwise"]
    assert lengths[1000, 1, "elementwise+0.5"] > 1.5 * plain
    assert lengths[1000, 1, "elementwise+1"] > 3 * plain
    assert lengths[2, 1, "elementwise+1"] < lengths[2, 1, "elementwise"] == plain


def test_a_mode_that_offloads_needs_memory_of_the_host() -> None:
    document = json.loads(json.dumps(derive_offloading(1e9, ["none", "none+0.5"]).document))
    document["memory"]["host_memory_bytes"] = 0
    message = r"\(none\+0\.5\).*offloads layers\. State memory\.host_memory_bytes"
    with pytest.raises(ProfileError, match=message):
        Profile.from_document(document, "host")


@pytest.mark.parametrize(("pp", "share"), [(1, 0.3), (2, 0.3), (8, 0.3), (8, 0.1)])
def test_the_host_holds_whole_layers_of_each_stage(pp: int, share: float) -> None:
    mode = join_mode("none", share)
    deployment = dataclasses.replace(DEPLOYMENT, host_memory_bytes=2e9)
    document = derive_profile(deployment, [Scheme(pp=pp)], name="host", modes=["none", mode])
    profile = Profile.from_document(document, "host")
    of_mode = profile.model(profile.by_scheme[Scheme(pp=pp)], 16, 131_072).find_mode(mode)
    layers = DEPLOYMENT.sizes.layers
    of_layer = {known.name: known for known in profile.modes}["none"].kept[1] / layers
    offloaded = sum(is_offloaded(share, layer) for layer in range(layers // pp))
    assert of_mode.max_len == int(2e9 / (pp * offloaded * of_layer))


def test_copies_that_nothing_hides_take_time() -> None:
    profile = derive_offloading(1e12, ["elementwise", "elementwise+0.5", "elementwise+1"])
    by_mode = profile.by_scheme[Scheme()].modes
    times = [latency.micro_batch_ms([2048]) for latency in by_mode.values()]
    assert times[0] <= times[1] < times[2]
    slow = dataclasses.replace(DEPLOYMENT.cluster.hardware, host_gb_s=5.0)
    cluster = dataclasses.replace(DEPLOYMENT.cluster, hardware=slow)
    deployment = dataclasses.replace(DEPLOYMENT, cluster=cluster, host_memory_bytes=1e12)
    document = derive_profile(deployment, [Scheme()], name="slow", modes=["elementwise+1"])
    (latency,) = Profile.from_document(document, "slow").by_scheme[Scheme()].modes.values()
    moved = document["modes"][0]["host_bytes_per_token"]["1"] * 2048 / 5e6
    assert latency.micro_batch_ms([2048]) > moved


def test_offload_without_host_memory_or_link_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"host memory of mode full.1: 0 bytes a GPU\. State host"):
        derive_offloading(0.0, ["full+1"])
    cluster = dataclasses.replace(
        DEPLOYMENT.cluster, hardware=dataclasses.replace(DEPLOYMENT.cluster.hardware, host_gb_s=0.0)
    )
    with pytest.raises(ValueError, match=r"the host link of h100-80gb is not known\. State host"):
        dataclasses.replace(DEPLOYMENT, cluster=cluster, host_memory_bytes=1e9, offload_layers=0.5)


@pytest.mark.parametrize("mode", ["none+1.5", "none+0", "none+", "none+.5", "none+x", "+0.5"])
def test_shares_that_are_none_are_rejected(mode: str) -> None:
    with pytest.raises(ValueError, match="Give"):
        split_mode(mode)


@given(st.sampled_from(MODES), st.integers(0, 100), st.integers(1, 60))
def test_modes_are_written_as_they_are_read(name: str, percent: int, layers: int) -> None:
    share = percent / 100
    assert split_mode(join_mode(name, share)) == (name, share)
    offloaded = [is_offloaded(share, layer) for layer in range(layers)]
    assert sum(offloaded) == ceil(Fraction(percent, 100) * layers)
    assert offloaded[0] or not share


def test_a_mode_that_a_profile_lacks_is_rejected() -> None:
    few = load_all().keep_modes({"none", "full"})
    with pytest.raises(ProfileError, match="its recomputation modes are none, full, not mlp"):
        few.keep_modes({"mlp"})


def test_a_chunked_loss_holds_longer_sequences() -> None:
    whole = derive_profile(
        Deployment(cluster=DEPLOYMENT.cluster, sizes=DEPLOYMENT.sizes, loss="whole"),
        [Scheme()],
        name="whole",
        modes=["full"],
    )
    lengths = [
        profile.model(profile.by_scheme[Scheme()], 8, 131_072).max_len
        for profile in (load_all().keep_modes({"full"}), Profile.from_document(whole, "whole"))
    ]
    assert lengths[0] > 3 * lengths[1]
