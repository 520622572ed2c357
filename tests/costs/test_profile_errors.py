"""An error in a profile is one line that names the file and the field."""

import json
from pathlib import Path
from typing import Any

import pytest
from document_changes import MISSING, change_document

from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.shipped.catalogue import find_profile, list_shipped, load_shipped

AGAIN = "this version reads 2. Make the profile again"

SOUND: dict[str, Any] = {
    "schema": 2,
    "name": "small",
    "source": "made for a test",
    "residuals": "none: exact",
    "hardware": {"gpu": "none", "gpus_per_node": 4},
    "model": {"hidden": 64, "layers": 12, "heads": 24, "kv_heads": 24},
    "zero_stage": 1,
    "memory": {
        "capacity_bytes": 1e6,
        "context_bytes": 0,
        "margin_bytes": 1e5,
        "sharded_state_bytes": [[1000, 1e5], [None, 2e5]],
        "resident_layer_bytes": 2e5,
        "resident_embedding_bytes": 1e4,
        "activation_bytes_per_token": {"1": 100, "2": 100},
    },
    "schemes": [
        {"tp": 1, "a": 1e-6, "b": 1e-3, "c": 1.0},
        {"tp": 2, "pp": 3, "a": 1e-7, "b": 1e-4, "c": 1.0},
    ],
}


RANGE = "must be a number from 0 to 1e+18:"
BYTES = "memory.activation_bytes_per_token"
STATES = "memory.sharded_state_bytes"
CASES = [
    ("hardware.values", {"peak": 1}, "hardware.values.peak: is not a field of a profile"),
    (
        "hardware.values",
        {"hbm_gb_s": "1"},
        'hardware.values.hbm_gb_s: must be a finite number ≥ 0: "1"',
    ),
    ("notes", {"a": 1}, "notes: must be a list: an object"),
    ("notes", ["checked", 3], "notes[1]: must be a string: 3"),
    ("schemes.1.a", -1e-9, f"schemes[1] (tp2.pp3).a: {RANGE} -1e-09"),
    ("schemes.0.b", "fast", f'schemes[0] (tp1).b: {RANGE} "fast"'),
    ("schemes.0.c", float("nan"), f"schemes[0] (tp1).c: {RANGE} NaN"),
    ("schemes.0.c", float("inf"), f"schemes[0] (tp1).c: {RANGE} Infinity"),
    ("schemes.1.b", MISSING, "schemes[1].b: is missing"),
    ("schemes.1.b", None, f"schemes[1] (tp2.pp3).b: {RANGE} null"),
    (
        *("schemes.0", lambda entry: {**entry, "a": 0, "b": 0}),
        (
            "schemes[0] (tp1): coefficients a and b are both 0: the scheme would take no time. "
            "State one above 0"
        ),
    ),
    ("schemes.0.a", 10**400, f"schemes[0] (tp1).a: {RANGE} 1{'0' * 56}…"),
    ("schemes.0.dp", 2, "schemes[0].dp: is not a field of a profile"),
    ("schemes.0.tp", 0, "schemes[0].tp: must be an integer ≥ 1: 0"),
    ("schemes.0.tp", 1.5, "schemes[0].tp: must be an integer ≥ 1: 1.5"),
    ("schemes.0.tp", True, "schemes[0].tp: must be an integer ≥ 1: true"),
    ("schemes", lambda entries: [*entries, entries[1]], "schemes: tp2.pp3 is listed twice"),
    ("schemes.1.pp", 5, "schemes[1] (tp2.pp5): pp = 5 does not divide the 12 layers"),
    ("schemes.0", [1], "schemes[0]: must be an object: a list"),
    ("schemes", [], "schemes: must be at least one scheme"),
    ("schemes", {}, "schemes: must be a list: an object"),
    ("schemes.0.flag", 1, "schemes[0].flag: must be a string: 1"),
    ("memory", MISSING, "memory: is missing"),
    ("name", MISSING, "name: is missing"),
    ("name", "", "name: must be a text that is not empty"),
    ("zero", 1, "zero: is not a field of a profile"),
    ("schema", 1, f"schema: is 1, {AGAIN}"),
    ("schema", True, f"schema: is true, {AGAIN}"),
    ("zero_stage", 0, "zero_stage: must be an integer ≥ 1: 0"),
    ("zero_stage", 4, "zero_stage: must be 1, 2 or 3: 4"),
    ("zero_stage", 3, "schemes: under ZeRO-3 every scheme must have tp = pp = 1"),
    ("forward_fraction", 1, "forward_fraction: must be a share between 0 and 1: 1.0"),
    ("hardware.gpus_per_node", "8", 'hardware.gpus_per_node: must be an integer ≥ 1: "8"'),
    ("hardware.gpu", MISSING, "hardware.gpu: is missing"),
    ("model.layers", MISSING, "model.layers: is missing"),
    ("model.hidden", -64, "model.hidden: must be an integer ≥ 1: -64"),
    ("memory.capacity_bytes", -1, f"memory.capacity_bytes: {RANGE} -1.0"),
    ("memory.capacity_bytes", MISSING, "memory.capacity_bytes: is missing"),
    (BYTES, {}, f"{BYTES}: must be an object of tp → bytes"),
    (f"{BYTES}.2", 0, f"{BYTES}.2: must be at least 1 byte: 0"),
    (f"{BYTES}.²", 1, f"{BYTES}.²: the key must be a tensor-parallel degree"),
    (BYTES, {"1": 100}, f"{BYTES}: lacks tp = 2, which schemes[1] (tp2.pp3) needs"),
    (STATES, 1e5, f"{STATES}: must be a list: 100000.0"),
    (*(f"{STATES}.0", [1000]), f"{STATES}[0]: must be [largest context in tokens or null, bytes]"),
    (
        *(STATES, [[1000, 1], [500, 1]]),
        f"{STATES}[1]: context 500 does not follow 1000; null is last",
    ),
    (
        *(STATES, [[None, 1], [500, 1]]),
        f"{STATES}[1]: context 500 does not follow None; null is last",
    ),
    ("name", "\ud800", "half of a surrogate pair is not text. Remove the character"),
]


@pytest.mark.parametrize(("place", "value", "message"), CASES, ids=range(len(CASES)))
def test_a_malformed_profile(place: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(change_document(SOUND, place, value)))
    with pytest.raises(ProfileError) as caught:
        find_profile(str(path))
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a whole JSON document (Expecting value at line 1)"),
        (b"tp = 4\n", "not a whole JSON document (Expecting value at line 1)"),
        (
            b'{"schema": 2,\n "name"',
            "not a whole JSON document (Expecting ':' delimiter at line 2)",
        ),
        (b"[]", "must be an object: a list"),
        (b"null", "must be an object: null"),
        (b"{}\n{}\n", "not a whole JSON document (Extra data at line 2; a plan file has several)"),
        (b"\x93NUMPY\x01", "is not text: byte 1"),
        (b'{"schema": 2, "schema": 2}', "not a profile (field 'schema' is written twice. "),
        (b"[" * 100_000, "not a profile (too deeply nested (maximum recursion depth exceeded"),
        (b"1" * 5000, "not a profile (Exceeds the limit"),
    ],
)
def test_malformed_profiles_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        find_profile(str(path))
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.json: cannot be read: No such file"):
        find_profile(str(tmp_path / "none.json"))
    with pytest.raises(ProfileError, match="cannot be read: Is a directory"):
        find_profile(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-32b", "llama-32b-a800-80gb"),
        ("llama-33b-a800-80gb", "llama-32b-a800-80gb"),
        ("GPT-7b-a100-40gb", "gpt-7b-a100-40gb"),
        ("gpt-30b-a100", "gpt-30b-a100-40gb"),
    ],
)
def test_an_unknown_name_gives_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ProfileError) as caught:
        find_profile(name)
    assert str(caught.value) == (
        f"profile {name!r} is neither a file nor a shipped profile; did you mean {near}? "
        "(seqplan profile list has them). Name one of them or a path"
    )


def test_a_name_like_none_gives_no_hint() -> None:
    with pytest.raises(ProfileError) as caught:
        find_profile("qqq")
    assert "did you mean" not in str(caught.value)


def test_a_sound_profile_from_a_file(tmp_path: Path) -> None:
    # A file is found whatever its name looks like.
    path = tmp_path / "small"
    path.write_text(json.dumps(SOUND))
    profile = find_profile(str(path))
    assert profile.name == "small"
    assert [str(entry.scheme) for entry in profile.schemes] == ["tp1", "tp2.pp3"]
    assert profile.mode_names == "none"
    assert profile.forward_fraction == pytest.approx(1 / 3)
    assert not profile.lockstep


def test_the_digest_is_of_the_content_not_of_its_form() -> None:
    compact = Profile.from_json(json.dumps(SOUND), "a")
    spread = Profile.from_json(json.dumps(SOUND, indent=2, sort_keys=True), "b")
    other = Profile.from_json(json.dumps({**SOUND, "name": "other"}), "c")
    assert compact.digest == spread.digest != other.digest


def test_states_are_those_of_the_least_context_that_suffices() -> None:
    profile = Profile.from_json(json.dumps(SOUND), "small")
    entry = profile.schemes[0]
    # (1e6 − 1e5 − states/10 − 2e5 − 1e4) / 100
    assert profile.model(entry, 10, 1000).max_len == 6800
    assert profile.model(entry, 10, 1001).max_len == 6700
    assert profile.model(entry, 10, 10**9).max_len == 6700


@pytest.mark.parametrize("name", list_shipped())
def test_every_shipped_profile_loads_and_states_its_source(name: str) -> None:
    profile = load_shipped(name)
    assert profile.name == name
    assert "arXiv" in profile.source or profile.source.startswith("derived: analytic model of ")
    assert profile.residuals
    assert profile.digest.startswith("sha256:")
    assert find_profile(name) is profile
    assert Profile.from_document(profile.document, "again") == profile


def test_the_names_that_ship() -> None:
    published = (
        *("gpt-13b-a100-40gb", "gpt-30b-a100-40gb", "gpt-7b-a100-40gb"),
        *("llama-13b-a800-80gb", "llama-32b-a800-80gb", "llama-7b-a800-80gb"),
    )
    estimated = (
        f"{model}-{device}"
        for model in ("llama3-70b", "llama3-8b", "qwen3-32b", "qwen3-8b")
        for device in ("h100-80gb", "h200-141gb")
    )
    of_experts = (
        f"{model}-{device}"
        for model in (
            *("deepseek-v3", "gpt-oss-120b", "gpt-oss-20b"),
            *("qwen3-235b-a22b", "qwen3-30b-a3b"),
        )
        for device in ("h100-80gb", "h200-141gb", "b200-180gb")
    )
    assert list_shipped() == tuple(sorted((*published, *estimated, *of_experts)))
