"""Ranks that stop at a checkpoint, and fewer ranks that go on from it by a continuing job."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from service_process import Served, serving

ROOT = Path(__file__).parents[2]
STEPS, STOP = 6, 4


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def _losses(served: Served, job: str, world: int, checkpoints: Path) -> dict[int, float]:
    """Train under a job until its plans end; the loss of each step."""
    line = [sys.executable, ROOT / "examples" / "train.py", "--server", served.url, "--job", job]
    line += ["--checkpoints", checkpoints, "--checkpoint-every", str(STOP)]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            line,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, said
    return {item["step"]: item["loss"] for item in map(json.loads, said[0][0].splitlines())}


def test_four_ranks_stop_and_two_go_on(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.load(ROOT / "examples" / "data" / "code.npy")[:500])
    document = (ROOT / "examples" / "data" / "llama-small-cpu.json").read_bytes()
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        profile = served.ok("POST", "/v1/profiles", document)["id"]
        lengths = served.ok("POST", "/v1/lengths", file.getvalue())["id"]
        asked = {"profile": profile, "lengths": lengths, "max_len": 512, "tokens": 1500}
        four, two = (served.proposal({**asked, "gpus": gpus}) for gpus in (4, 2))
        drawn = {"proposal": four, "lengths": lengths}
        served.ok("POST", "/v1/jobs", {"id": "straight", **drawn, "steps": STEPS})
        served.ok("POST", "/v1/jobs", {"id": "stopped", **drawn, "steps": STOP})
        expected = _losses(served, "straight", 4, tmp_path / "straight")
        assert sorted(expected) == list(range(STEPS))
        before = _losses(served, "stopped", 4, tmp_path / "stopped")
        assert before == {step: expected[step] for step in range(STOP)}
        going = {"id": "going", "proposal": two, "continues": {"job": "stopped", "step": STOP}}
        served.ok("POST", "/v1/jobs", {**going, "steps": STEPS})
        after = _losses(served, "going", 2, tmp_path / "stopped")
        # The same sequences, states and optimizer: sums in another order, nothing else.
        assert sorted(after) == list(range(STOP, STEPS))
        for step, loss in after.items():
            assert loss == pytest.approx(expected[step], rel=1e-4)
        assert served.ok("GET", "/v1/jobs/going")["acknowledged"] == [STEPS - 1] * 2
