"""Completing measured profiles: derived schemes, and their distance from measured ones."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from deployments import SCHEMES, deploy, profile_of, read_terms

from seqplan import Profile, Scheme
from seqplan.costs.analytic.complete import complete
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profiled_scheme import BUFFER, ProfileError
from seqplan.costs.shipped.catalogue import load_shipped

DEPLOYMENT = deploy("llama-7b")


def measured(slower: float) -> Profile:
    """A profile of one device that is ``slower`` times as slow as the model."""
    document = derive_profile(DEPLOYMENT, [Scheme()], name="measured")
    for entry in document["schemes"]:
        entry.update({name: slower * entry[name] for name in "abc"}, origin="measured")
    return profile_of(document)


def test_completing_keeps_measured_schemes_and_adds_the_rest() -> None:
    profile = measured(1.0)
    document = complete(profile, DEPLOYMENT.cluster, SCHEMES)
    completed = profile_of(document)
    assert completed.by_scheme[Scheme()] == profile.by_scheme[Scheme()]
    assert sorted(completed.by_scheme) == sorted(SCHEMES)
    assert {entry.origin for entry in completed.schemes if entry.scheme != Scheme()} == {"derived"}
    assert any("Schemes marked derived" in note for note in document["notes"])
    # On a device as fast as the model, they are those of a derived profile.
    derived = profile_of(derive_profile(DEPLOYMENT, SCHEMES, name="x"))
    for scheme in SCHEMES:
        for length in (2048, 32768):
            assert completed.by_scheme[scheme].latency.micro_batch_ms([length]) == pytest.approx(
                derived.by_scheme[scheme].latency.micro_batch_ms([length]), rel=0.06
            )
    assert completed.memory.activation_bytes_per_token == derived.memory.activation_bytes_per_token


def test_every_mode_is_completed_from_its_measurements() -> None:
    document = derive_profile(DEPLOYMENT, [Scheme()], name="measured", modes=("none", "full"))
    for entry in document["schemes"]:
        entry["origin"] = "measured"
        entry["modes"]["full"] = {name: 2 * ms for name, ms in entry["modes"]["full"].items()}
    profile = profile_of(document)
    completed = profile_of(complete(profile, DEPLOYMENT.cluster, SCHEMES))
    assert completed.mode_names == profile.mode_names
    for mode in ("none", "full"):
        alone = profile_of(complete(profile.keep_modes([mode]), DEPLOYMENT.cluster, SCHEMES))
        of_mode = completed.keep_modes([mode])
        for scheme in SCHEMES:
            assert of_mode.by_scheme[scheme].latency == alone.by_scheme[scheme].latency
        assert of_mode.memory.activation_bytes_per_token == alone.memory.activation_bytes_per_token
    notes = [note for note in completed.document["notes"] if "Schemes marked derived" in note]
    assert [note.split(":")[1].strip() for note in notes] == ["none", "full"]
    assert complete(profile, DEPLOYMENT.cluster, [Scheme()]) == profile.document


def test_modes_that_offload_are_not_completed() -> None:
    deployment = replace(DEPLOYMENT, host_memory_bytes=1e12)
    profile = profile_of(
        derive_profile(deployment, [Scheme()], name="x", modes=("none", "none+0.5"))
    )
    with pytest.raises(ValueError, match=r"its mode none\+0\.5 offloads"):
        complete(profile, DEPLOYMENT.cluster, SCHEMES)


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
        terms = read_terms(DEPLOYMENT, scheme, [length])
        transfer_ms = sum(terms[name] for name in ("ulysses", "ring transfer", "ring merge"))
        share = transfer_ms / sum(terms.values())
        assert ratio == pytest.approx(2 - share, rel=0.05)
        assert ratio < 1.98


def test_shared_costs_shrink_also_if_the_model_has_launches_only() -> None:
    """A tiny model on a CPU: on the cluster's devices launching would be most of its time."""
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
    deployment = replace(DEPLOYMENT, sizes=ModelSizes.from_mapping(sizes))
    document = derive_profile(deployment, [Scheme()], name="measured", longest=4096)
    document["schemes"][0].update(a=4e-5, b=0.05, c=10.0, origin="measured")
    four = Scheme(ulysses=4)
    completed = profile_of(complete(profile_of(document), deployment.cluster, [four], longest=4096))
    alone, shared = (completed.by_scheme[scheme].latency for scheme in (Scheme(), four))
    assert shared.micro_batch_ms([4096]) < 0.5 * alone.micro_batch_ms([4096])
    # Costs paid once a micro-batch are not shared.
    assert shared.micro_batch_ms([128]) > 0.5 * alone.micro_batch_ms([128])


SPLIT = [Scheme(tp, pp) for tp, pp in product((1, 2, 4, 8), (1, 2))]
DERIVED = [Scheme.parse(text) for text in ("u4", "tp2.u4", "tp4.r2", "tp8.u2", "tp4.pp2.u2")]


def measured_split(factors: dict[str, float], left_out: Scheme | None = None) -> Profile:
    """Schemes without Ulysses and ring, on devices whose terms are the model's times factors."""
    import numpy as np

    from seqplan.costs.analytic.derived_scheme import fit_terms

    def times(scheme: Scheme, lengths: Any) -> Any:
        terms = stage_terms(DEPLOYMENT, scheme, lengths)
        return np.sum([factors.get(name, 1.0) * ms for name, ms in terms.items()], axis=0)

    schemes = [scheme for scheme in SPLIT if scheme != left_out]
    document = derive_profile(DEPLOYMENT, schemes, name="measured")
    for entry in document["schemes"]:
        scheme = Scheme(entry.get("tp", 1), entry.get("pp", 1))
        latency = fit_terms(times, scheme, 131072)[0]
        entry.update(a=latency.a, b=latency.b, c=latency.c, origin="measured")
    return profile_of(document)


FACTORS = {"attention": 0.7, "tp communication": 1.5, "matrix products": 1.1}


def test_terms_are_calibrated_on_measured_schemes() -> None:
    document = complete(measured_split(FACTORS), DEPLOYMENT.cluster, DERIVED)
    (note,) = [note for note in document["notes"] if note.startswith("Schemes marked derived")]
    assert "terms calibrated on 8 measured schemes: matrix products ×1." in note
    moved = {
        part.rsplit(" ×", 1)[0].strip(): float(part.rsplit(" ×", 1)[1])
        for part in note.split("schemes: ")[1].split("; calibrated")[0].split(", ")
    }
    # Towards the truth, and short of it: one is the prior.
    assert 0.65 < moved["attention"] < 0.95
    assert 1.1 < moved["tp communication"] < 1.6
    completed = profile_of(document)
    truth = {
        scheme: {
            length: sum(
                FACTORS.get(name, 1.0) * ms
                for name, ms in read_terms(DEPLOYMENT, scheme, [length]).items()
            )
            for length in (4096, 32768)
        }
        for scheme in DERIVED
    }
    for scheme, times in truth.items():
        for length, ms in times.items():
            derived = completed.by_scheme[scheme].latency.micro_batch_ms([length])
            assert derived == pytest.approx(ms, rel=0.1), (scheme, length)


def test_a_layout_that_was_not_measured_comes_from_the_calibrated_terms() -> None:
    alone = Scheme(tp=4)
    document = complete(measured_split(FACTORS, left_out=alone), DEPLOYMENT.cluster, [alone])
    derived = profile_of(document).by_scheme[alone]
    assert derived.origin == "derived"
    whole = measured_split(FACTORS).by_scheme[alone].latency
    for length in (4096, 32768):
        assert derived.latency.micro_batch_ms([length]) == pytest.approx(
            whole.micro_batch_ms([length]), rel=0.1
        )


@pytest.mark.parametrize("model", ["7b", "13b", "32b"])
def test_shipped_profiles_equal_completed_ones(model: str) -> None:
    whole = load_shipped(f"llama-{model}-a800-80gb")
    derived = [entry.scheme for entry in whole.schemes if entry.origin == "derived"]
    assert len(derived) >= 60
    assert all(scheme.sp > 1 or scheme == Scheme() for scheme in derived)
    cluster, sizes = ClusterHardware(DEVICES["a800-80gb"], 8, 8), MODELS[f"llama-{model}"]
    for part in (whole.restrict(measured=True), whole):  # derived schemes are derived anew
        again = complete(part, cluster, derived, sizes=sizes)
        # The order of sums decides the last digits, and where the fit of coefficients ends.
        for entry, shipping in zip(again["schemes"], whole.document["schemes"], strict=True):
            coefficients = {name: pytest.approx(shipping[name], rel=1e-3) for name in "abc"}
            buffer = {BUFFER: 12.0 * sizes["hidden"]} if entry.get("ring", 1) > 1 else {}
            assert entry == {**shipping, **coefficients, **buffer}
            # The shipped ones are without buffers of rings, which are hardly any bytes there.
            for activation in whole.memory.activation_bytes_per_token.values():
                assert buffer.get(BUFFER, 0.0) < 0.01 * activation
        assert {**again, "schemes": []} == {**whole.document, "schemes": []}


@pytest.mark.parametrize("model", ["7b", "13b", "32b"])
def test_sequence_parallelism_costs_gpu_time_and_buys_room(model: str) -> None:
    """Next to the same tp and pp: no less GPU-time per token, and tokens in proportion to GPUs."""
    models = {m.scheme: m for m in load_shipped(f"llama-{model}-a800-80gb").usable(64, 32768)}
    pairs = [(s, Scheme(s.tp, s.pp)) for s in models if s.sp > 1 and Scheme(s.tp, s.pp) in models]
    assert pairs
    for scheme, base in pairs:
        assert models[scheme].max_len == pytest.approx(models[base].max_len * scheme.sp, rel=0.001)
        for length in (2048, 8192):
            spread, alone = (
                m.latency.micro_batch_ms([length]) * m.scheme.gpus
                for m in (models[scheme], models[base])
            )
            assert spread >= alone * 0.99, (scheme, length)


def test_incomplete_profiles_are_rejected_with_the_reason() -> None:
    llama = load_shipped("llama-7b-a800-80gb")
    with pytest.raises(ValueError, match=r"state the model's ffn\. Give a model"):
        complete(llama.restrict(measured=True), DEPLOYMENT.cluster, SCHEMES)
    with pytest.raises(ValueError, match="its model has hidden 4096, not 5120"):
        complete(llama, DEPLOYMENT.cluster, SCHEMES, sizes=MODELS["llama-13b"])
    with pytest.raises(ValueError, match="does not state the model's heads, kv_heads, ffn, vocab"):
        complete(load_shipped("gpt-7b-a100-40gb"), DEPLOYMENT.cluster, SCHEMES)
    estimated = profile_of(derive_profile(DEPLOYMENT, [Scheme()], name="estimated"))
    with pytest.raises(ValueError, match="has no measured scheme to derive others from"):
        complete(estimated, DEPLOYMENT.cluster, SCHEMES)
    profile = measured(1.0)
    assert complete(profile, DEPLOYMENT.cluster, [Scheme()]) == profile.document


def test_a_part_of_a_profile() -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    measured_part = profile.restrict(measured=True)
    assert {entry.origin for entry in measured_part.schemes} == {"published"}
    one_layout = profile.restrict(layout=(4, 2))
    assert {(entry.scheme.tp, entry.scheme.pp) for entry in one_layout.schemes} == {(4, 2)}
    assert len({profile.digest, measured_part.digest, one_layout.digest}) == 3
    for _ in range(2):  # and again: a part is not made of what reading the one before filled in
        assert profile.restrict(measured=True).digest == measured_part.digest
    for part in (profile, measured_part, one_layout):
        assert profile.with_digest(part.digest) == part
    assert profile.with_digest("sha256:other") is None
    assert measured_part.restrict(measured=True) is measured_part
    with pytest.raises(ProfileError, match="has no scheme of layout tp3; its layouts are tp1, pp2"):
        profile.restrict(layout=(3, 1))
    with pytest.raises(ProfileError, match="has no measured scheme of layout tp1"):
        profile.restrict(measured=True, layout=(1, 1))


def test_reading_leaves_a_document_as_it_was_given() -> None:
    profile = load_shipped("llama-7b-a800-80gb")
    before = json.dumps(profile.document)
    Profile.from_document({**profile.document, "schemes": profile.document["schemes"][:3]}, "part")
    profile.restrict(measured=True)
    assert json.dumps(profile.document) == before
