"""Recomputation modes of a profile: read, restricted, evaluated and combined."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile, ProfileError, combine_modes, keep_modes
from seqplan.plans.recomputation import MODES
from seqplan.plans.scheme import Scheme

DEPLOYMENT = Deployment(
    cluster=ClusterHardware(DEVICES["h100-80gb"], 1, 8),
    sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
    loss="chunked",
)
DOCUMENT = derive_profile(DEPLOYMENT, [Scheme(), Scheme(tp=4)], name="all", modes=MODES)
PROFILE = Profile.from_document(DOCUMENT, "all")


def test_modes_are_listed_from_the_one_that_keeps_most() -> None:
    kept = [mode.kept[1] for mode in PROFILE.modes]
    assert kept == sorted(kept, reverse=True)
    assert {mode.name for mode in PROFILE.modes} == set(MODES)
    shares = PROFILE.forward_fraction
    assert isinstance(shares, dict)
    assert shares["none"] > shares["elementwise"] > shares["half_products"] > shares["full"]


def test_models_have_the_modes_that_hold_more_at_a_higher_cost() -> None:
    model = PROFILE.model(PROFILE.by_scheme[Scheme(tp=4)], 8, 131_072)
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
    one = PROFILE.keep_modes({name})
    derived = derive_profile(DEPLOYMENT, [Scheme(), Scheme(tp=4)], name="all", modes=[name])
    assert one.checkpointing == name
    for entry in derived["schemes"]:
        scheme = Scheme(tp=entry.get("tp", 1))
        assert one.by_scheme[scheme].latency.a == entry["a"]
    assert one.document["memory"] == derived["memory"]
    assert PROFILE.with_digest(one.digest) == one


def test_modes_of_several_profiles_are_combined() -> None:
    names = ["full", "none", "elementwise"]
    combined, left_out = combine_modes([keep_modes(DOCUMENT, [name]) for name in names])
    assert left_out == []
    profile = Profile.from_document(json.loads(json.dumps(combined)), "combined")
    assert [mode.name for mode in profile.modes] == ["none", "elementwise", "full"]
    for entry in profile.schemes:
        for name, latency in entry.modes.items():
            assert latency == PROFILE.by_scheme[entry.scheme].modes[name]
    # A mode that keeps as much as one that recomputes less is of no use.
    twice = [keep_modes(DOCUMENT, ["none"]), keep_modes(DOCUMENT, ["mlp"])]
    twice[1]["memory"]["activation_bytes_per_token"]["1"] *= 100
    assert combine_modes(twice)[1] == ["mlp"]


def _changed(change: str) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(keep_modes(DOCUMENT, ["none", "mlp", "full"]))
    first, second, _ = document["modes"]
    if change == "order":
        document["modes"] = [second, first]
    elif change == "name":
        first["name"] = "some"
    elif change == "one":
        document["modes"] = [first]
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
    elif change == "lacking":
        del document["schemes"][0]["modes"]["full"]
    else:
        document["checkpointing"] = "none"
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("order", r"modes\[1\] \(none\): keeps no fewer bytes than mlp before it"),
        ("name", r"modes\[0\].name: must be one of none, elementwise"),
        ("one", "must be at least two"),
        ("share", "must be a share between 0 and 1"),
        ("degrees", "kept and transient bytes must be of the same degrees"),
        ("tp", "lacks tp = 4"),
        ("time", r"modes.full: 8,192 tokens take .* which recomputes less. Measure both again"),
        ("lacking", "full"),
        ("stated", "checkpointing: is stated by each of modes"),
    ],
)
def test_modes_that_contradict_each_other_are_rejected(change: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Profile.from_document(_changed(change), "changed")


def test_a_mode_that_a_profile_lacks_is_rejected() -> None:
    few = PROFILE.keep_modes({"none", "full"})
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
        for profile in (PROFILE.keep_modes({"full"}), Profile.from_document(whole, "whole"))
    ]
    assert lengths[0] > 3 * lengths[1]
