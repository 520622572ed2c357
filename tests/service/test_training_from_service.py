"""A real training job of several processes whose plans come from a real service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from service_process import serving

ROOT = Path(__file__).parents[2]
WORLD, STEPS = 2, 4

JOB = f"""
profile = "{ROOT}/examples/data/llama-small-cpu.json"
lengths = "lengths.npy"
gpus = {WORLD}
context = 512
tokens = 1500
steps = {STEPS}
port = 0
"""


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def test_ranks_train_from_a_sidecar_and_report_what_steps_took(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.load(ROOT / "examples" / "data" / "code.npy")[:500])
    (tmp_path / "job.toml").write_text(JOB)
    with serving("--job", tmp_path / "job.toml", verb="sidecar") as served:
        environment = {
            **os.environ,
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _free_port(),
            "OMP_NUM_THREADS": "1",
        }
        line = [sys.executable, ROOT / "examples" / "train.py", "--server", served.url]
        line += ["--job", "job", "--checkpoints", tmp_path / "checkpoints"]
        ranks = [
            subprocess.Popen(
                line,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]
        try:
            said = [rank.communicate(timeout=240) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0] * WORLD, said
        losses = [json.loads(text) for text in said[0][0].splitlines()]
        assert [item["step"] for item in losses] == list(range(STEPS))
        job = served.ok("GET", "/v1/jobs/job")
        assert job["acknowledged"] == [STEPS - 1] * WORLD
        steps = served.ok("GET", "/v1/jobs/job/steps")["items"]
        assert [item["ranks_acknowledged"] for item in steps] == [WORLD] * STEPS
        assert all(item["measured_ms"] > 0 for item in steps)
        drift = served.ok("GET", "/v1/jobs/job/drift")
        assert drift["pipelines"]["measured"] > 0, drift
