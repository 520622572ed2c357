"""Options of expert parallelism of ``seqplan estimate`` and ``profile derive``."""

import json
from pathlib import Path

from command_line import call, succeeded

from seqplan.costs.profile import Profile

MOE = ("--model", "qwen3-30b-a3b", "--hardware", "h100-80gb", "--nodes", "2")


def test_expert_parallelism_is_estimated_by_degree() -> None:
    options = ("--expert-parallel", "1,8,16", "--dispatcher", "hybridep:0.5")
    load = ("--seq-len", "4096", "--batch", "64")
    text = succeeded(call("estimate", *MOE, *options, *load))
    assert "tp1 ep16" in text
    assert "1 times the mean of tokens (assumed)" in " ".join(text.split())
    document = json.loads(succeeded(call("estimate", *MOE, *options, *load, "--json")))
    degrees = {found["expert_parallel"]: found for found in document["estimates"]}
    assert sorted(degrees) == [1, 8, 16]
    assert degrees[16]["peak_bytes"] < degrees[8]["peak_bytes"] < degrees[1]["peak_bytes"]
    assert "expert exchange" not in degrees[1]["terms_ms"]
    split = call(
        *("estimate", *MOE, "--expert-parallel", "8", "--expert-tensor-parallel", "2"),
        *("--expert-imbalance", "1.5", *load),
    )
    assert "1.5 times the mean" in " ".join(succeeded(split).split())


def test_a_profile_is_derived_by_degree_of_expert_parallelism(tmp_path: Path) -> None:
    output = tmp_path / "moe.json"
    options = ("--expert-parallel", "1,8", "--dispatcher", "deepep", "--expert-imbalance", "1.2")
    text = succeeded(
        call(*("profile", "derive", *MOE, *options, "--schemes", "tp1,tp2", "-o", str(output)))
    )
    assert "1.2 times the mean of tokens (assumed)" in " ".join(text.split())
    assert Profile.load(output).expert_degrees == (1, 8)
    assert "tp2 ep8" in succeeded(call("profile", "show", str(output), "--gpus", "16"))


def test_parts_of_a_layer_are_recomputed_alone() -> None:
    load = ("--expert-parallel", "8", "--seq-len", "4096", "--batch", "64", "--json")
    peaks = []
    for recompute in ("none", "layernorm,moe_act", "moe"):
        found = json.loads(succeeded(call("estimate", *MOE, *load, "--recompute", recompute)))
        peaks.append((found["estimates"][0]["peak_bytes"], found["estimates"][0]["iteration_ms"]))
    assert peaks[0][0] > peaks[1][0] > peaks[2][0]
    assert peaks[0][1] < peaks[1][1] < peaks[2][1]
