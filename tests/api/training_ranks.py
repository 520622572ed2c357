"""A real training job of several processes whose plans come from a service."""

import json
from pathlib import Path

import numpy as np
from trainers import start_trainers

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240


def write_small_job(folder: Path, gpus: int, steps: int, more: str = "") -> Path:
    """Write a sidecar's job of a small model, with 500 lengths."""
    np.save(folder / "lengths.npy", np.load(ROOT / "examples" / "data" / "code.npy")[:500])
    path = folder / "job.toml"
    path.write_text(
        f'profile = "{ROOT}/examples/data/llama-small-cpu.json"\nlengths = "lengths.npy"\n'
        f"gpus = {gpus}\nmax_len = 512\ntokens = 1500\nsteps = {steps}\nport = 0\n{more}"
    )
    return path


def train(url: str, job: str, world: int, checkpoints: Path, *more: str) -> dict[int, float]:
    """Run ``examples/train.py`` under a job until its plans end; the loss of each step."""
    line = ["--plans", f"{url}/v1/jobs/{job}", "--checkpoints", checkpoints, *more]
    trainers = start_trainers(world, line)
    try:
        outputs = [trainer.output.read() for trainer in trainers]
        for trainer in trainers:
            trainer.process.join(PATIENCE_S)
        assert [trainer.process.exitcode for trainer in trainers] == [0] * world, outputs
    finally:
        for trainer in trainers:
            trainer.end()
    # gloo of some releases writes to stdout that it is connected
    records = [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]
    return {record["step"]: record["loss"] for record in records}
