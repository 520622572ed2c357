"""Kill a rank of the example trainer, start it again: the same losses, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from random_plans import random_plan
from trainers import start_trainers

from seqplan.plans.format.codec import to_json

RANKS, STEPS = 2, 12
PATIENCE_S = 60


def losses(
    plans: Path, checkpoints: Path, kill: tuple[int, int] | None = None
) -> list[tuple[int, float]]:
    """(step, loss) as rank 0 prints them, until the end or until ``kill`` = (rank, after step)."""
    arguments = ["--plans", plans, "--checkpoint-every", "2", "--checkpoints", checkpoints]
    ranks = start_trainers(RANKS, arguments)
    losses = []
    try:
        for line in ranks[0].output:
            if not line.startswith("{"):
                continue  # gloo of some releases writes there that it is connected
            record = json.loads(line)
            losses.append((record["step"], record["loss"]))
            if kill is not None and record["step"] == kill[1]:
                ranks[kill[0]].process.kill()
        for rank in ranks:
            rank.process.join(PATIENCE_S)
        codes = [rank.process.exitcode for rank in ranks]
        assert all(codes) if kill is not None else not any(codes), codes
    finally:
        for rank in ranks:
            rank.end()
    return losses


def test_any_rank_may_be_killed_at_any_step(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    step_plans = [random_plan(rng, RANKS, step=step, heads=4, longest=80) for step in range(STEPS)]
    plans = tmp_path / "plans.jsonl"
    plans.write_text("".join(f"{to_json(plan)}\n" for plan in step_plans))
    straight = dict(losses(plans, tmp_path / "straight"))
    assert sorted(straight) == list(range(STEPS))
    again = losses(plans, tmp_path / "killed", kill=(1, 4))
    again += losses(plans, tmp_path / "killed", kill=(0, 7))
    again += losses(plans, tmp_path / "killed")
    assert {step for step, _ in again} == set(straight)
    assert again[-1][0] == STEPS - 1
    for step, loss in again:
        assert loss == straight[step]
