"""A sidecar on one core next to a job of 64 ranks that takes a second a step."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.http_clients import Client, connect_all
from benchmarks.served import Served
from benchmarks.settings import PROFILE, Data, markdown, workload

GPUS, LOOK_AHEAD = 64, 8
STEP_S, STEPS, WARM_UP = 1.0, 60, 3


def run(data: Sequence[Data]) -> None:
    """Print a table for each data set: was a plan ever missing, and what did planning cost."""
    rows = []
    core = max(os.sched_getaffinity(0))
    for seconds in data:
        with tempfile.TemporaryDirectory() as folder:
            job = _job_file(Path(folder), seconds)
            with Served("sidecar", "--job", job, cores=[core]) as served:
                began = served.cpu_s()
                waits, ahead = asyncio.run(_train(served))
                spent = served.cpu_s() - began
            rows.append(
                [
                    seconds.name,
                    str(min(ahead[WARM_UP:])),
                    f"{np.median(waits[WARM_UP:]):.1f}",
                    f"{max(waits[WARM_UP:]):.1f}",
                    f"{spent / STEPS:.2f}",
                ]
            )
    header = ["data", "least look-ahead", "wait p50 (ms)", "wait max (ms)", "CPU-s a step"]
    print(f"{STEPS} steps of {STEP_S:g} s, look-ahead {LOOK_AHEAD}, one core\n")
    print(markdown(header, rows), "\n")


def _job_file(folder: Path, data: Data) -> Path:
    np.save(folder / "lengths.npy", data.lengths)
    where = workload(GPUS)
    path = folder / "job.toml"
    path.write_text(
        f'profile = "{PROFILE}"\nlengths = "lengths.npy"\ngpus = {GPUS}\nport = 0\n'
        f"context = {where.max_len}\ntokens = {where.tokens}\n"
        f"steps = 100000\nlook_ahead = {LOOK_AHEAD}\n"
    )
    return path


async def _train(served: Served) -> tuple[list[float], list[int]]:
    """For each step, the slowest rank's wait (ms) and the plans ready when it began."""
    connection = await Client.connect(served.host, served.port)
    ranks = await connect_all(served.host, served.port, GPUS)
    waits, ahead = [], []
    due = time.perf_counter()
    for step in range(STEPS):
        ahead.append(await _planned(connection) - step)
        start = time.perf_counter()
        views = await asyncio.gather(
            *(
                client.send("GET", f"/v1/jobs/job/plans/{step}/ranks/{rank}?wait=60")
                for rank, client in enumerate(ranks)
            )
        )
        assert all(view.status == 200 for view in views)
        waits.append((max(view.at for view in views) - start) * 1000)
        due = max(due + STEP_S, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        bodies = (json.dumps({"step": step, "rank": r, "digest": None}) for r in range(GPUS))
        answers = await asyncio.gather(
            *(
                client.send("POST", "/v1/jobs/job/acks", body.encode())
                for client, body in zip(ranks, bodies, strict=True)
            )
        )
        assert all(answer.status == 200 for answer in answers)
    for client in (connection, *ranks):
        client.close()
    return waits, ahead


async def _planned(client: Client) -> int:
    """The number of steps that are planned."""
    answer = await client.send("GET", "/v1/jobs/job")
    return int(json.loads(answer.body)["planned_steps"])
