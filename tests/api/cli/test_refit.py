"""``seqplan refit`` and derived profiles, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded

from seqplan.plans.format.plan_file import read_plans
from seqplan.profiler.profile import Profile


def planned(tmp_path: Path) -> tuple[Path, Path]:
    """An estimated profile, and plans made with it."""
    profile, lengths = tmp_path / "p.json", tmp_path / "l.npy"
    np.save(lengths, np.random.default_rng(0).integers(100, 8000, 4000))
    derived = "--model llama3-8b --hardware h100-80gb --schemes u1,u2,u4,tp2"
    succeeded(call("profile", "--estimate", *derived.split(), "-o", str(profile)))
    proposal, plans = tmp_path / "proposal.json", tmp_path / "plans.jsonl"
    common = ("--lengths", str(lengths))
    cluster = ("--gpus", "8", "--max-len", "8192", "--tokens", "100000")
    options = ("--profile", str(profile), *cluster, *common, "-o", str(proposal))
    succeeded(call("propose", *options))
    steps = ("--proposal", str(proposal), *common, "--steps", "12", "-o", str(plans))
    succeeded(call("plan", *steps))
    return profile, plans


def test_slower_ranks_make_a_slower_profile(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    before = Profile.load(profile)
    assert {entry.origin for entry in before.schemes} == {"derived"}
    lines = []
    for plan in read_plans(plans):
        for pipeline in plan.pipelines:
            ms = 1.25 * sum(batch.cost_ms for batch in pipeline.micro_batches)
            lines += [
                json.dumps({"step": plan.step, "rank": rank, "measured_ms": ms})
                for rank in pipeline.ranks
                if ms
            ]
    times, output = tmp_path / "times.jsonl", tmp_path / "refitted.json"
    times.write_text("\n".join(lines))
    files = ("--profile", str(profile), "--plans", str(plans), "--measurements", str(times))
    schemes = json.loads(succeeded(call("refit", *files, "-o", str(output), "--json")))
    changed = [scheme for scheme in schemes if scheme["how"] != "kept"]
    assert changed
    after = Profile.load(output)
    for scheme in changed:
        assert scheme["before"]["median"] == pytest.approx(0.2, abs=0.01)
        assert scheme["after"]["median"] < 0.01
    by_name = {str(entry.scheme): entry for entry in before.schemes}
    for entry in after.schemes:
        if entry.origin == "measured":
            old = by_name[str(entry.scheme)].latency.micro_batch_ms([5000])
            assert entry.latency.micro_batch_ms([5000]) == pytest.approx(1.25 * old, rel=0.02)
    assert "held-out error after" in succeeded(call("refit", *files))


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    times = tmp_path / "times.jsonl"
    times.write_text('{"step":99,"rank":0,"measured_ms":3}\n')
    files = ("--profile", str(profile), "--plans", str(plans), "--measurements", str(times))
    assert "no step of" in complaint(call("refit", *files))
    times.write_text("x\n")
    assert "line 1: wants" in complaint(call("refit", *files))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--estimate --model llama3-8b", "--estimate wants --hardware"),
        ("--estimate --model llama3-8b --hardware x9", "--hardware 'x9': wants one of"),
        ("--estimate --model llama3-8b --hardware h100-80gb --plot a.html", "no samples to show"),
        ("--complete none.json --hardware h100-80gb", "none.json: cannot be read"),
        ("--estimate --model llama3-8b --hardware h100-80gb --schemes tp3", "tp"),
    ],
)
def test_derived_profiles_say_what_is_missing(tmp_path: Path, arguments: str, message: str) -> None:
    output = tmp_path / "o.json"
    assert message in complaint(call("profile", *arguments.split(), "-o", str(output)))
    assert not output.exists()
