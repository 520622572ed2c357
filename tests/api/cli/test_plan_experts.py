"""Plans from data whose profile splits experts, and comparisons that do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from expert_profiles import make_expert_profile

from seqplan.planner.comparison.compare import WHOLE_EXPERTS, Options, compare
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workload import Workload

GPUS, CONTEXT, TOKENS = 4, 2048, 60_000
LENGTHS = np.random.default_rng(1).lognormal(6, 0.8, 2000).astype(int).clip(16, CONTEXT)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    lengths, profile = tmp_path / "lengths.npy", tmp_path / "profile.json"
    np.save(lengths, LENGTHS)
    document = make_expert_profile({2: 0.3, 4: 0.4}).document
    profile.write_text(json.dumps(dict(document)))
    return lengths, profile


def test_steps_are_planned_explained_and_proven(files: tuple[Path, Path], tmp_path: Path) -> None:
    lengths, profile = files
    plans = tmp_path / "plans.jsonl"
    options = ("--profile", profile, "--gpus", GPUS, "--max-len", CONTEXT, "--tokens", TOKENS)
    text = succeeded(call("plan", lengths, *options, "--steps", 2, "-o", plans))
    assert "Experts on " in text
    assert "Plans whose experts are split are not compared with other systems." in text
    degree = json.loads(plans.read_text().splitlines()[0])["expert_parallel"]
    text = succeeded(call("check", "plans", plans, "--profile", profile, "--prove"))
    assert "2 plans, no broken rules, every bound proven" in text
    text = succeeded(call("explain", plans, "--profile", profile, "--step", 0))
    assert f"experts on {degree} ranks" in text
    succeeded(call("trace", plans, "--step", 1, "-o", tmp_path / "trace.json"))
    message = complaint(call("compare", lengths, *options, "--steps", 2))
    assert "its experts are split over ranks, which the compared systems do not model" in message
    text = succeeded(call("propose", lengths, *options, "--schemes", "ep2"))
    assert "Experts on 2 ranks: " in text


def test_a_comparison_leaves_experts_whole() -> None:
    profile = make_expert_profile({1: 0.0, 4: 0.4})
    workload = Workload(gpus=GPUS, max_len=CONTEXT, tokens=TOKENS)
    sync = choose_sync(profile.at_expert_parallel(1), GPUS)
    comparison = compare(profile, workload, LENGTHS, 1, sync, options=Options(fast=True))
    assert comparison.assumptions[-1] == WHOLE_EXPERTS
