"""A real training job of several processes whose plans come from a service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def train(url: str, job: str, world: int, checkpoints: Path, *more: str) -> dict[int, float]:
    """Run ``examples/train.py`` under a job until its plans end; the loss of each step."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    line = [sys.executable, ROOT / "examples" / "train.py", "--server", url, "--job", job]
    line += ["--checkpoints", checkpoints, *more]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
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
    # gloo of some releases writes to stdout that it is connected
    records = [json.loads(line) for line in said[0][0].splitlines() if line.startswith("{")]
    return {record["step"]: record["loss"] for record in records}
