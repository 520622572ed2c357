"""Options that few commands of other tests give."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from service_process import serving
from test_profile import profiled

from seqplan.costs.profile import Profile

LLAMA = ("--profile", "llama-7b-a800-80gb", "--gpus", 4, "--max-len", 8192, "--tokens", 20_000)


def test_profile_measure_in_double_precision(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    options = ("--lengths", "8..64", "--points", "4", "--repeats", "1", "--even-if-busy")
    options += ("--dtype", "float64", "--name", "tiny-double", "--json", "-o", str(output))
    document = json.loads(succeeded(profiled(tmp_path, *options)).splitlines()[-1])
    assert document["name"] == "tiny-double"
    assert "float64" in document["source"]
    samples = str(output.with_suffix(".samples.jsonl"))
    merged = tmp_path / "merged.json"
    options = ("--capacity-gib", "1", "--name", "merged", "-o", str(merged))
    succeeded(call("profile", "merge", samples, *options))
    assert Profile.load(merged).name == "merged"


def test_profile_derive_without_sequence_parallelism(tmp_path: Path) -> None:
    tokens = []
    for name, flag in (("split", "--sequence-parallel"), ("whole", "--no-sequence-parallel")):
        output = tmp_path / f"{name}.json"
        options = ("--model", "llama3-8b", "--hardware", "h100", "--schemes", "tp8")
        succeeded(call("profile", "derive", *options, flag, "--name", name, "-o", output))
        profile = Profile.load(output)
        assert profile.name == name
        (entry,) = profile.schemes
        tokens.append(profile.model(entry, 64, 1).max_len)
    assert tokens[0] > tokens[1]  # norms and residuals of a token are on one rank of tp
    sizes = ("--model", "llama3-8b", "--hardware", "h100", "--tp", 8, "--seq-len", 8192)
    for flag in ("--sequence-parallel", "--no-sequence-parallel"):
        succeeded(call("estimate", *sizes, flag))


def test_compare_in_lockstep_for_a_trainer(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.npy"
    np.save(lengths, np.random.default_rng(0).lognormal(6.5, 1.0, 2000).astype(int) + 1)
    few = ("compare", lengths, *LLAMA, "--steps", 1, "--systems", "static", "--json")
    options = ("--execution", "lockstep", "--micro-step-multiple", 2)
    fields = json.loads(succeeded(call(*few, *options)))
    assert any("run in lockstep" in sentence for sentence in fields["assumptions"])
    assert any("multiple of 2" in sentence for sentence in fields["assumptions"])
    assert json.loads(succeeded(call(*few, "--seed", 7)))["seed"] == 7
    trained = json.loads(succeeded(call(*few, "--trainer", "megatron")))
    assert trained["baseline"] == "megatron-dcp"


def test_serve_keeps_what_it_was_given(tmp_path: Path) -> None:
    keeping = ("--keep-steps", 9, "--abandon-hours", 2, "--job-days", 1, "--grace-days", 1)
    store = tmp_path / "store.db"
    with serving("--store", store, "--port", 0, *keeping, "--allow-host", "planner") as served:
        assert served.send("GET", "/v1/jobs").status == 200
        assert served.send("GET", "/v1/jobs", headers={"Host": "planner"}).status == 200
        assert served.send("GET", "/v1/jobs", headers={"Host": "elsewhere"}).status != 200
    for option, value in (("--keep-steps", 0), ("--abandon-hours", 0), ("--grace-days", -1)):
        assert f"argument {option}: must be" in complaint(
            call("serve", "--store", store, f"{option}={value}")
        )
    assert "argument --job-days: must be" in complaint(
        call("serve", "--store", store, "--job-days=-1")
    )


def test_log_of_a_service_with_tokens(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    token = succeeded(call("serve", "--store", store, "--add-token", "reader")).split()[-1]
    with serving("--store", store, "--port", 0) as served:
        assert "401" in complaint(call("log", "--server", served.url))
        succeeded(call("log", "--server", served.url, "--token", token))


@pytest.mark.parametrize("option", ["--lengths", "--cpu-profile"])
def test_demo_rejects_files_that_are_not_there(tmp_path: Path, option: str) -> None:
    line = complaint(call("demo", option, tmp_path / "none", "-o", tmp_path / "out"))
    assert str(tmp_path / "none") in line
