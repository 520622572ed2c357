"""``plan --slowdown``: plans around slow ranks from the command line."""

from pathlib import Path

import numpy as np
import pytest
from command_line import call, succeeded

from seqplan.plans.format.plan_file import read_plans


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawn = np.random.default_rng(0).lognormal(6.5, 1.2, 3000).astype(int) + 5
    path = tmp_path_factory.mktemp("slowdown") / "lengths.npy"
    np.save(path, np.minimum(drawn, 8_000))
    return path


@pytest.fixture(scope="module")
def proposal(lengths: Path) -> Path:
    profile = ("--profile", "llama3-8b-h100-80gb", "--gpus", 8, "--max-len", 8192)
    file = lengths.with_name("proposal.json")
    succeeded(call("propose", lengths, *profile, "--tokens", 60_000, "-o", file))
    return file


def test_plans_state_slow_ranks_and_are_proven(
    lengths: Path, proposal: Path, tmp_path: Path
) -> None:
    plans = tmp_path / "plans.jsonl"
    steps = ("--proposal", proposal, "--tokens", 60_000, "--steps", 3)
    succeeded(call("plan", lengths, *steps, "--slowdown", "3=1.5,6=1.2", "-o", plans))
    for plan in read_plans(plans):
        slow = {rank: p.slowdown for p in plan.pipelines for rank in p.ranks if p.slowdown > 1}
        assert slow[3] == 1.5
        assert slow[6] in (1.2, 1.5)
    succeeded(call("check", "plans", plans, "--proposal", proposal, "--prove"))
    assert "of slow ranks, up to 1.5 ×" in succeeded(call("explain", plans, "--step", 0))
    workers = tmp_path / "workers.jsonl"
    succeeded(
        call("plan", lengths, *steps, "--slowdown", "3=1.5,6=1.2", "--workers", 2, "-o", workers)
    )
    assert workers.read_bytes() == plans.read_bytes()


def test_lost_ranks_get_nothing(lengths: Path, proposal: Path, tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    steps = ("--proposal", proposal, "--tokens", 60_000, "--steps", 2)
    succeeded(call("plan", lengths, *steps, "--slowdown", "3=1.5,6=lost", "-o", plans))
    for plan in read_plans(plans):
        assert plan.lost_ranks == (6,)
        assert all(6 not in pipeline.ranks for pipeline in plan.pipelines)
    succeeded(call("check", "plans", plans, "--proposal", proposal, "--prove"))
    assert "lost ranks 6: planned on the other 7" in succeeded(call("explain", plans, "--step", 0))
