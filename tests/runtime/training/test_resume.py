"""Kill a rank of the example trainer, start it again: the same losses, bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from random_plans import random_staged_plan

from seqplan.plans.format.codec import to_json

TRAINER = Path(__file__).parents[3] / "examples" / "train.py"
RANKS, STEPS = 2, 12


def started(plans: Path, checkpoints: Path) -> list[subprocess.Popen[str]]:
    """The ranks as torchrun would start them; rank 0's output is read."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(TRAINER), "--plans", str(plans), "--checkpoint-every", "2"]
    command += ["--checkpoints", str(checkpoints), "--export", str(export_of(checkpoints))]
    logs = [log_of(checkpoints, rank).open("w", encoding="utf-8") for rank in range(RANKS)]
    ranks = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=logs[rank],
            text=True,
        )
        for rank in range(RANKS)
    ]
    for log in logs:
        log.close()
    return ranks


def export_of(checkpoints: Path) -> Path:
    return checkpoints.with_suffix(".pt")


def log_of(checkpoints: Path, rank: int) -> Path:
    return checkpoints.with_suffix(f".{rank}.log")


def losses(
    plans: Path, checkpoints: Path, kill: tuple[int, int] | None = None
) -> list[tuple[int, float]]:
    """(step, loss) as rank 0 prints them, until the end or until ``kill`` = (rank, after step)."""
    ranks = started(plans, checkpoints)
    losses = []
    try:
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            if not line.startswith("{"):
                continue  # gloo of some releases writes there that it is connected
            record = json.loads(line)
            losses.append((record["step"], record["loss"]))
            if kill is not None and record["step"] == kill[1]:
                ranks[kill[0]].send_signal(signal.SIGKILL)
        codes = [rank.wait(timeout=30) for rank in ranks]
        assert all(codes) if kill is not None else not any(codes), codes
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            if rank.stdout is not None:
                rank.stdout.close()
    return losses


def assert_one_sentence(log: Path) -> None:
    """What a rank says that has lost the other: no trace of a backend's stack."""
    (line,) = log.read_text(encoding="utf-8").splitlines()
    assert re.match(r"rank [01]: (step \d+: )?a rank is lost: the connection closed while ", line)


def test_any_rank_may_be_killed_at_any_step(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sizes = {"layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
    step_plans = [
        random_staged_plan(rng, RANKS, sizes, step=step, longest=80) for step in range(STEPS)
    ]
    schemes = {pipeline.scheme for plan in step_plans for pipeline in plan.pipelines}
    assert any(scheme.tp > 1 for scheme in schemes)
    assert any(scheme.pp > 1 for scheme in schemes)
    plans = tmp_path / "plans.jsonl"
    plans.write_text("".join(f"{to_json(plan)}\n" for plan in step_plans))
    straight = dict(losses(plans, tmp_path / "straight"))
    assert sorted(straight) == list(range(STEPS))
    killed = tmp_path / "killed"
    again = losses(plans, killed, kill=(1, 4))
    assert_one_sentence(log_of(killed, 0))
    again += losses(plans, killed, kill=(0, 7))
    assert_one_sentence(log_of(killed, 1))
    again += losses(plans, killed)
    exported = [torch.load(export_of(folder)) for folder in (tmp_path / "straight", killed)]
    assert exported[0].keys() == exported[1].keys()
    assert all(torch.equal(exported[0][name], exported[1][name]) for name in exported[0])
    assert {step for step, _ in again} == set(straight)
    assert again[-1][0] == STEPS - 1
    for step, loss in again:
        assert loss == straight[step]
