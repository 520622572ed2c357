"""``plan --slowdown``: plans around slow ranks from the command line."""

import json
from pathlib import Path

import numpy as np
from command_line import call, succeeded

from seqplan.plans.format.plan_file import read_plans


def test_plans_state_slow_ranks_and_lost_ones_and_are_proven(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).lognormal(6.5, 1.2, 3000).astype(int) + 5
    lengths, proposal = tmp_path / "lengths.npy", tmp_path / "proposal.json"
    np.save(lengths, np.minimum(drawn, 8_000))
    profile = ("--profile", "llama3-8b-h100-80gb", "--gpus", 8, "--max-len", 8192)
    succeeded(call("propose", lengths, *profile, "--tokens", 60_000, "-o", proposal))
    steps = ("plan", lengths, "--proposal", proposal, "--tokens", 60_000, "--steps", 3)
    by_slowdown = {}
    for slowdown, lost in (("3=1.5,6=1.2", ()), ("3=1.5,6=lost", (6,))):
        plans = tmp_path / f"{slowdown}.jsonl"
        succeeded(call(*steps, "--slowdown", slowdown, "-o", plans))
        for plan in read_plans(plans):
            slow = {rank: p.slowdown for p in plan.pipelines for rank in p.ranks}
            assert slow[3] == 1.5
            assert plan.lost_ranks == lost
            assert 6 not in slow if lost else slow[6] in (1.2, 1.5)
        succeeded(call("check", "plans", plans, "--proposal", proposal, "--prove"))
        by_slowdown[slowdown] = succeeded(call("explain", plans, "--step", 0))
    assert "of slow ranks, up to 1.5 ×" in by_slowdown["3=1.5,6=1.2"]
    assert "lost ranks 6: planned on the other 7" in by_slowdown["3=1.5,6=lost"]
    workers = tmp_path / "workers.jsonl"
    succeeded(call(*steps, "--slowdown", slowdown, "--workers", 2, "-o", workers))
    assert workers.read_bytes() == plans.read_bytes()


def test_plans_between_lost_ranks_keep_their_proposals_statements(tmp_path: Path) -> None:
    """Groups that lost ranks split are of strategies that no candidate has."""
    batches, proposal = tmp_path / "batches.jsonl", tmp_path / "proposal.json"
    batches.write_text(json.dumps({"step": 0, "lengths": [9000, 5000] + [600] * 40}) + "\n")
    named = ("--profile", "llama3-8b-h100-80gb", "--gpus", 8, "--max-len", 16_384)
    succeeded(call("propose", batches, *named, "--tokens", 30_000, "-o", proposal))
    for lost in ((3, 5, 7), (3, 4, 5, 6)):
        plans = tmp_path / "plans.jsonl"
        slowdown = ",".join(f"{rank}=lost" for rank in lost)
        from_batches = ("plan", batches, "--proposal", proposal, "--slowdown", slowdown)
        succeeded(call(*from_batches, "-o", plans))
        succeeded(call("check", "plans", plans, "--proposal", proposal, "--prove"))
        plans.unlink()
