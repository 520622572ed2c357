"""Profiles with entries for several degrees of expert parallelism."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan import Profile, Scheme
from seqplan.api.cli.profile.show_profile import scheme_rows
from seqplan.costs.cost_errors import CostError
from seqplan.costs.fit.measurements import MixedPipeline
from seqplan.costs.fit.refit import refit_profile, write_refit
from seqplan.costs.latency import Latency
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.format.canonical import canonical_json

MOE = {"expert_layers": 4, "experts": 8, "experts_per_token": 2, "expert_ffn": 64}
MODEL = {"hidden": 64, "layers": 4, "heads": 8, "kv_heads": 8, "ffn": 64, "vocab": 100, **MOE}


def entry(degree: int, *, tp: int = 1, shared: float = 2e-4, factor: float = 1.0) -> dict[str, Any]:
    """An entry of a degree with two modes."""
    plain = {"a": 1e-6, "b": 1e-3 * factor, "c": 1.0}
    slow = {"a": 1.2e-6, "b": 1.3e-3 * factor, "c": 1.1}
    modes = {
        name: {**of, **({"b_shared": shared} if degree > 1 else {})}
        for name, of in (("none", plain), ("full", slow))
    }
    return {"tp": tp, **({"expert_parallel": degree} if degree > 1 else {}), "modes": modes}


DOCUMENT: dict[str, Any] = {
    "schema": 2,
    "name": "experts",
    "source": "made for a test",
    "residuals": "none: exact",
    "hardware": {"gpu": "none", "gpus_per_node": 8},
    "model": MODEL,
    "zero_stage": 1,
    "modes": [
        {
            "name": name,
            "forward_fraction": 0.3,
            "kept_bytes_per_token": {"1": kept, "2": kept},
            "transient_bytes_per_token": {"1": 10, "2": 10},
        }
        for name, kept in (("none", 100), ("full", 20))
    ],
    "memory": {
        "capacity_bytes": 1e6,
        "context_bytes": 0,
        "margin_bytes": 1e5,
        "sharded_state_bytes": [[None, 8e5]],
        "resident_layer_bytes": 1e5,
        "resident_expert_bytes": 4e5,
        "resident_embedding_bytes": 1e4,
    },
    "schemes": [
        entry(1),
        entry(1, tp=2),
        entry(4, factor=1.1),
        entry(4, tp=2, factor=1.1),
        entry(8, factor=1.2),
    ],
}


EXPERT_BYTES = "resident_expert_bytes"


def read(**changed: Any) -> Profile:
    """The profile with changed fields."""
    return Profile.from_document({**copy.deepcopy(DOCUMENT), **changed}, "experts")


PROFILE = read()


def test_a_profile_of_several_degrees_is_not_one_of_a_scheme_each() -> None:
    assert PROFILE.expert_degrees == (1, 4, 8)
    message = (
        r"^profile experts: has expert_parallel 1, 4, 8\. State one, such as expert_parallel=4;"
    )
    for use in (
        lambda: PROFILE.expert_parallel,
        lambda: PROFILE.by_scheme,
        lambda: PROFILE.usable(8, 1),
    ):
        with pytest.raises(ProfileError, match=message):
            use()


def test_a_degree_is_a_profile_of_its_own() -> None:
    four = PROFILE.at_expert_parallel(4)
    assert four.expert_parallel == 4
    assert four.at_expert_parallel(4) is four
    assert sorted(four.by_scheme) == [Scheme(), Scheme(tp=2)]
    assert four.by_scheme[Scheme()].b_shared == 2e-4
    assert four.by_scheme[Scheme()].modes["none"].b_shared == 2e-4
    model = next(m for m in four.usable(8, 1) if m.scheme == Scheme())
    assert model.b_shared == 2e-4
    mode = model.find_mode("none")
    assert mode.b_shared == 2e-4
    assert mode.b == 1.1e-3
    with pytest.raises(ProfileError, match=r"has no expert_parallel 2, only 1, 4, 8\."):
        PROFILE.at_expert_parallel(2)


def test_experts_are_divided_by_their_degree_and_by_tp_without_one() -> None:
    # 1e6 − 1e5 − 8e5/8 − layers − experts − embeddings; 30 bytes a token in the mode that
    # keeps least, divided by tp.
    expected = {
        (1, 1): (8e5 - 1e5 - 4e5 - 1e4) / 30,
        (2, 1): (8e5 - 1e5 / 2 - 4e5 / 2 - 1e4 / 2) / 15,
        (1, 4): (8e5 - 1e5 - 4e5 / 4 - 1e4) / 30,
        (2, 4): (8e5 - 1e5 / 2 - 4e5 / 4 - 1e4 / 2) / 15,
        (1, 8): (8e5 - 1e5 - 4e5 / 8 - 1e4) / 30,
    }
    found = {
        (entry.scheme.tp, entry.expert_parallel): PROFILE.model(entry, 8, 1).max_len
        for entry in PROFILE.schemes
    }
    assert found == {key: int(tokens) for key, tokens in expected.items()}


def test_a_block_of_experts_requires_its_ranks() -> None:
    eight = PROFILE.at_expert_parallel(8)
    assert not eight.usable(4, 1)
    assert [model.scheme for model in eight.usable(8, 1)] == [Scheme()]
    rows = {row["scheme"]: row["max_len"] for row in scheme_rows(PROFILE, 4, 1)}
    assert rows["tp1 ep8"] == 0 < rows["tp1 ep4"]


def test_restrictions_are_found_by_digest() -> None:
    four = PROFILE.at_expert_parallel(4)
    for part in (
        PROFILE,
        four,
        four.keep_modes({"full"}),
        four.keep_schemes({Scheme(tp=2)}),
        four.keep_schemes({Scheme(tp=2)}).keep_modes({"none"}),
    ):
        found = PROFILE.with_digest(part.digest)
        assert canonical_json(found.document) == canonical_json(part.document)


def test_coefficients_change_with_their_shared_part() -> None:
    wrong = CostError(name="b", factors=(1.0, 1.5, 1.0)).apply(PROFILE)
    assert wrong.at_expert_parallel(4).by_scheme[Scheme()].b_shared == pytest.approx(3e-4)
    four = PROFILE.at_expert_parallel(4)
    modes = four.by_scheme[Scheme()].modes
    samples: list[MixedPipeline] = []
    for length in range(1000, 2600, 100):
        one = MixedPipeline((length,), 1.0, by_mode={"none": ((length,),)})
        samples.append(replace(one, ms=1.4 * one.predict_ms(modes)))
    refitted = refit_profile(four, {Scheme(): samples})
    again = Profile.from_document(write_refit(four, refitted.schemes, "x"), "again")
    for scheme in (Scheme(), Scheme(tp=2)):
        assert again.by_scheme[scheme].b_shared == pytest.approx(2.8e-4, rel=1e-3)
    with pytest.raises(ProfileError, match="expert_parallel 1, 4, 8"):
        refit_profile(PROFILE, {Scheme(): samples})


def test_experts_on_ranks_need_their_bytes() -> None:
    memory = {name: of for name, of in DOCUMENT["memory"].items() if name != EXPERT_BYTES}
    message = r"schemes\[2\] \(tp1\).*has experts on 4 ranks\. State memory\.resident_expert_byt"
    with pytest.raises(ProfileError, match=message):
        read(memory=memory)
    schemes = [scheme for scheme in DOCUMENT["schemes"] if "expert_parallel" not in scheme]
    assert read(memory=memory, schemes=schemes).memory.resident_expert_bytes == 0
    assert read(memory={**memory, "resident_layer_bytes": 0}).memory.resident_expert_bytes == 0


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        ([entry(3)], "schemes[0] (tp1): expert_parallel = 3 does not divide the 8 experts"),
        ([entry(4), entry(4)], "schemes: tp1 with expert_parallel 4 is listed twice"),
        ([{**entry(1), "expert_parallel": 0}], "schemes[0].expert_parallel: must be"),
        ([entry(4, shared=2.0)], "coefficient b_shared 2.0 is a part of b and must not exceed"),
        (
            [{**entry(4), "expert_parallel": 1}],
            "schemes[0] (tp1): b_shared above 0 requires expert_parallel above 1",
        ),
        ([entry(4, shared=-1.0)], "b_shared: must be a number from 0 to"),
    ],
)
def test_wrong_entries_are_rejected(schemes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read(schemes=schemes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dense_model_has_no_expert_parallelism() -> None:
    dense = {name: size for name, size in MODEL.items() if name not in MOE}
    with pytest.raises(ProfileError, match="expert_parallel = 4 requires a model with experts"):
        read(model=dense, schemes=[entry(4)])
    assert scheme_problem(Scheme(), PROFILE.shape, expert_parallel=8) is None


@given(st.floats(0, 1), st.floats(1e-6, 1e6), st.floats(1e-9, 1e2), st.sampled_from([2, 4, 8]))
def test_any_shared_part_is_read_and_scaled(
    share: float, b: float, factor: float, degree: int
) -> None:
    latency = Latency(1e-6, b, 1.0, share * b)
    scaled = latency.scale(factor)
    assert 0 <= scaled.b_shared <= scaled.b
    document = copy.deepcopy(DOCUMENT)
    document["schemes"] = [
        {"expert_parallel": degree, "modes": {"none": latency.as_dict(), "full": latency.as_dict()}}
    ]
    found = Profile.from_document(document, "any").by_scheme[Scheme()]
    assert found.latency == latency
    assert found.expert_parallel == degree
