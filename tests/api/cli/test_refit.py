"""``seqplan profile refit`` and ``profile derive``."""

import json
import re
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded

from seqplan import Profile, Scheme, read_plans


def planned(tmp_path: Path, modes: str = "none") -> tuple[Path, Path]:
    """An estimated profile, and plans made with it."""
    profile, lengths = tmp_path / "p.json", tmp_path / "l.npy"
    np.save(lengths, np.random.default_rng(0).integers(100, 8000, 4000))
    derived = f"--model llama3-8b --hardware h100-80gb --schemes u1,u2,u4,tp2 --recompute {modes}"
    succeeded(call("profile", "derive", *derived.split(), "--loss", "whole", "-o", profile))
    proposal, plans = tmp_path / "proposal.json", tmp_path / "plans.jsonl"
    common = str(lengths)
    cluster = ("--gpus", "8", "--max-len", "8192", "--tokens", "100000")
    succeeded(call("propose", "--profile", str(profile), *cluster, common, "-o", str(proposal)))
    steps = ("--proposal", str(proposal), common, "--steps", "12", "-o", str(plans))
    succeeded(call("plan", *steps))
    return profile, plans


def measured(plans: Path, *factors: float, steps: int | None = None) -> list[str]:
    """Lines of rank times of the first steps or all: the predicted ones times a pipeline's factor.

    Pipelines have the ``factors`` in turn.
    """
    factor = cycle(factors)
    return [
        json.dumps({"step": plan.step, "rank": rank, "measured_ms": next_factor * ms})
        for plan in islice(read_plans(plans), steps)
        for pipeline, next_factor in zip(plan.pipelines, factor, strict=False)
        for rank in pipeline.ranks
        if (ms := sum(batch.cost_ms for batch in pipeline.micro_batches))
    ]


def test_all_recomputation_modes_of_a_scheme_are_refitted(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path, "none,full")
    times = tmp_path / "times.jsonl"
    times.write_text("\n".join(measured(plans, 1.25)))
    output = tmp_path / "refitted.json"
    files = ("--profile", profile, "--plans", plans, "--measurements", times)
    printed = succeeded(call("profile", "refit", *files, "-o", output))
    assert "all coefficients of all modes times 1.250" in printed
    before, after = Profile.load(profile), Profile.load(output)
    for entry in after.schemes:
        for mode, latency in entry.modes.items():
            assert latency.b == pytest.approx(1.25 * before.by_scheme[entry.scheme].modes[mode].b)
    rejected = complaint(call("profile", "refit", "--profile", output, *files[2:]))
    assert f"{plans}: step 0 was planned from another profile than " in rejected
    plans.write_bytes(b"")
    assert f"{plans}: no plans. " in complaint(call("profile", "refit", *files))


def test_slower_ranks_make_a_slower_profile(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    before = Profile.load(profile)
    assert {entry.origin for entry in before.schemes} == {"derived"}
    lines = measured(plans, 1.25)
    times, output = tmp_path / "times.jsonl", tmp_path / "refitted.json"
    times.write_text("\n".join(lines))
    files = ("--profile", str(profile), "--plans", str(plans), "--measurements", str(times))
    schemes = json.loads(succeeded(call("profile", "refit", *files, "-o", str(output), "--json")))
    changed = [scheme for scheme in schemes if scheme["how"] in ("scaled", "fitted")]
    assert changed
    assert {scheme["how"] for scheme in schemes} <= {"scaled", "fitted", "extrapolated"}
    assert len(schemes) == len(before.schemes)
    after = Profile.load(output)
    for scheme in changed:
        assert scheme["before"]["median"] == pytest.approx(0.2, abs=0.01)
        assert scheme["after"]["median"] < 0.01
    by_name = {str(entry.scheme): entry for entry in before.schemes}
    for entry in after.schemes:
        old = by_name[str(entry.scheme)].latency.micro_batch_ms([5000])
        assert entry.latency.micro_batch_ms([5000]) == pytest.approx(1.25 * old, rel=0.02)
    assert {str(entry.scheme) for entry in after.schemes if entry.origin == "measured"} == {
        str(Scheme.from_dict(scheme["scheme"])) for scheme in changed
    }
    assert "held-out error after" in succeeded(call("profile", "refit", *files))


def test_a_uniformly_slower_device_does_not_change_the_proposal(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    times, output = tmp_path / "times.jsonl", tmp_path / "refitted.json"
    times.write_text("\n".join(measured(plans, 1.3)))
    files = ("--profile", profile, "--plans", plans, "--measurements", times)
    succeeded(call("profile", "refit", *files, "-o", output))
    cluster = ("--gpus", "8", "--max-len", "8192", "--tokens", "100000", "--sync", "none")
    candidates = []
    for name in (profile, output):
        arguments = ("--profile", name, *cluster, tmp_path / "l.npy", "--json")
        document = json.loads(succeeded(call("propose", *arguments)))
        candidates.append([candidate["strategy"] for candidate in document["candidates"]])
    assert candidates[0] == candidates[1]


def test_a_refit_prints_its_measured_times(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    lines = measured(plans, 1.25)
    # One rank of the first step's first pipeline reports no time.
    (ranks, *_) = (pipeline.ranks for pipeline in next(iter(read_plans(plans))).pipelines)
    lines.pop(0)
    assert len(ranks) == 2
    foreign = [f'{{"step":{step},"rank":0,"measured_ms":3}}' for step in (99, 98, 98, 97)]
    times, output = tmp_path / "times.jsonl", tmp_path / "refitted.json"
    times.write_text("\n".join([*foreign, *lines]))
    files = ("--profile", profile, "--plans", plans, "--measurements", times)
    out = succeeded(call("profile", "refit", *files, "-o", output)).splitlines()
    assert out[-1] == f"written: {output}"
    assert out[-3] == "1 rank time left out: other ranks of their pipelines were not measured"
    assert out[-2] == "3 rank times left out: of 3 steps that are not in the plans, 97 the first"
    row = next(line for line in out if "extrapolated" in line)
    assert "as the measured schemes; not measured" in row
    source = Profile.load(output).source
    assert f"refitted to {len(lines) - 1:,} measured rank times of training: " in source
    assert re.search(r"\d without enough of them scaled by 1\.25\d, as the measured", source)
    outcome = call("profile", "refit", *files, "--json")
    assert len(json.loads(succeeded(outcome))) == len(Profile.load(profile).schemes)
    assert "3 rank times left out" in outcome.err


def test_options_of_the_other_source_are_rejected(tmp_path: Path) -> None:
    files = ("--plans", tmp_path / "p.jsonl", "--measurements", tmp_path / "t.jsonl")
    line = complaint(
        call("profile", "refit", "--profile", "llama-7b-a800-80gb", *files, "--job", 1)
    )
    assert line == "--job is for --server. Leave it out"
    job = ("--server", "http://127.0.0.1:1", "--job", "job")
    line = complaint(call("profile", "refit", *job, "--measurements", tmp_path / "t.jsonl"))
    assert line == "--measurements is for --plans. Leave it out"


@pytest.mark.parametrize(
    ("factors", "steps", "why"),
    [
        ((1.3,), 1, "no scheme has the 8 measured pipelines that a correction needs ("),
        ((1.3, 1.0), None, "predicts the measured times best as it is"),
    ],
)
def test_a_profile_that_nothing_corrects_is_not_written(
    tmp_path: Path, factors: tuple[float, ...], steps: int | None, why: str
) -> None:
    profile, plans = planned(tmp_path)
    times, output = tmp_path / "times.jsonl", tmp_path / "refitted.json"
    times.write_text("\n".join(measured(plans, *factors, steps=steps)))
    files = ("--profile", profile, "--plans", plans, "--measurements", times)
    rejected = complaint(call("profile", "refit", *files, "-o", output))
    assert rejected.startswith(f"{output}: not written: ")
    assert why in rejected
    assert not output.exists()
    assert "kept" in succeeded(call("profile", "refit", *files))


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    profile, plans = planned(tmp_path)
    times = tmp_path / "times.jsonl"
    times.write_text('{"step":99,"rank":0,"measured_ms":3}\n')
    files = ("--profile", str(profile), "--plans", str(plans), "--measurements", str(times))
    rejected = complaint(call("profile", "refit", *files))
    assert f"no step of {plans} has a pipeline of one stage" in rejected
    assert rejected.endswith(". Measure steps planned with schemes of pp 1, or run profile measure")
    times.write_text("x\n")
    assert "line 1: is no JSON" in complaint(call("profile", "refit", *files))
