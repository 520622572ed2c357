"""The service over HTTP: immediate and waiting requests, 1,024 views, acknowledgements."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.http_clients import Answered, Client, connect_all
from benchmarks.served import Served
from benchmarks.settings import Data, markdown, published_schemes, workload
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.proposal.make_proposal import make_proposal

STEPS, SEED = 10, 0
CLIENTS = 64
"""Of the job of 64 ranks, one each."""
PER_SECOND, SECONDS = 10, 10
"""Each client's mean rate of requests, independent of the responses, and duration."""


def run(data: Sequence[Data]) -> None:
    """Print a table for the last data set. The clients are one process next to the service.

    A wake-up is from the moment at which the plan can be read in the store, polled for, to the
    whole view at a rank that waited.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        with Served("serve", "--port", 0, "--store", store) as served:
            rows = asyncio.run(_measure(served, store, data[-1].lengths))
    print(markdown(["requests", "p50 (ms)", "p99 (ms)", "errors"], rows), "\n")


async def _measure(served: Served, store: Path, lengths: Any) -> list[list[str]]:
    connection = await Client.connect(served.host, served.port)
    rows = []
    for gpus in (CLIENTS, 1024):
        document = make_proposal(published_schemes(), workload(gpus), lengths, seed=SEED, sync=None)
        answer = await _ok(connection, "/v1/proposals/documents", json.loads(document.to_json()))
        job = f"gpus-{gpus}"
        request = {"id": job, "proposal": answer["id"], "look_ahead": STEPS}
        await _ok(connection, "/v1/jobs", request)
        where = workload(gpus)
        batches = list(Sampler(lengths, where.tokens, where.max_len, SEED).batches(STEPS))
        ranks = await connect_all(served.host, served.port, gpus)
        try:
            woken = [await _woken(store, connection, ranks, job, batch) for batch in batches]
            times = [took for of_step in woken[1:] for took in of_step]  # planning has warmed up
            last = np.median([max(of_step) for of_step in woken[1:]])
            rows.append(_row(f"wake-up of {gpus:,} waiting ranks", times, 0))
            rows.append([f"all {gpus:,} views delivered", f"{last:.0f}", "", "0"])
            if gpus == CLIENTS:
                plan = f"/v1/jobs/{job}/plans/{{step}}"
                asked_for = f"{PER_SECOND * CLIENTS}/s"
                for label, path in (("plan", plan), ("view", plan + "/ranks/{rank}")):
                    parts = await asyncio.gather(
                        *(_at_a_rate(client, rank, path) for rank, client in enumerate(ranks))
                    )
                    text = f"{label} of {gpus} ranks, {CLIENTS} clients, {asked_for}"
                    rows.append(_row(text, *_joined(parts)))
                parts = [await _at_once(ranks, plan, step % STEPS) for step in range(40)]
                rows.append(_row(f"plan, {CLIENTS} clients at once", *_joined(parts)))
            parts = [await _acknowledged(ranks, job, step) for step in range(STEPS)]
            rows.append(_row(f"acknowledgement, {gpus:,} ranks at once", *_joined(parts)))
        finally:
            for client in ranks:
                client.close()
    connection.close()
    return rows


Times = list[tuple[float, int]]
"""Milliseconds and status of each request."""


async def _woken(
    store: Path, connection: Client, ranks: Sequence[Client], job: str, batch: Batch
) -> list[float]:
    """For every rank, ms from the plan's publication to its view."""
    waiting = [
        asyncio.create_task(
            client.send("GET", f"/v1/jobs/{job}/plans/{batch.step}/ranks/{rank}?wait=60")
        )
        for rank, client in enumerate(ranks)
    ]
    await asyncio.sleep(1.0)  # all of them wait
    published = asyncio.create_task(asyncio.to_thread(_published, store, job, batch.step))
    line = {"step": batch.step, "ids": batch.ids, "lengths": batch.lengths}
    await _ok(connection, f"/v1/jobs/{job}/batches", {"batches": [line]})
    at = await published
    answers = await asyncio.gather(*waiting)
    assert all(answer.status == 200 for answer in answers)
    return [max(0.0, answer.at - at) * 1000 for answer in answers]


async def _at_a_rate(client: Client, rank: int, path: str) -> Times:
    """Requests at random moments, planned before; a late one counts from when it was due."""
    random = np.random.default_rng([SEED, rank])
    due = np.cumsum(random.exponential(1 / PER_SECOND, size=PER_SECOND * SECONDS))
    began = time.perf_counter()
    times = []
    for turn, moment in enumerate(due.tolist()):
        await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
        answer = await client.send("GET", path.format(step=turn % STEPS, rank=rank))
        times.append(((answer.at - began - moment) * 1000, answer.status))
    return times


async def _at_once(clients: Sequence[Client], path: str, step: int) -> Times:
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    step_path = path.format(step=step)
    answers = await asyncio.gather(*(client.send("GET", step_path) for client in clients))
    return _since(began, answers)


async def _acknowledged(ranks: Sequence[Client], job: str, step: int) -> Times:
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    bodies = (
        json.dumps({"step": step, "rank": rank, "digest": None}).encode()
        for rank in range(len(ranks))
    )
    path = f"/v1/jobs/{job}/acks"
    answers = await asyncio.gather(
        *(client.send("POST", path, body) for client, body in zip(ranks, bodies, strict=True))
    )
    return _since(began, answers)


def _since(began: float, answers: Sequence[Answered]) -> Times:
    return [((answer.at - began) * 1000, answer.status) for answer in answers]


def _joined(parts: Sequence[Times]) -> tuple[list[float], int]:
    times = [time for part in parts for time in part]
    return [took for took, _ in times], sum(status != 200 for _, status in times)


def _row(label: str, times_ms: Sequence[float], errors: int) -> list[str]:
    p50, p99 = np.percentile(times_ms, [50, 99])
    return [label, f"{p50:.1f}", f"{p99:.1f}", str(errors)]


async def _ok(client: Client, path: str, body: Any) -> Any:
    answer = await client.send("POST", path, json.dumps(body).encode())
    assert 200 <= answer.status < 300, answer
    return json.loads(answer.body)


def _published(store: Path, job: str, step: int) -> float:
    """The moment at which the store has the plan, polled for."""
    connection = sqlite3.connect(store)
    query = "SELECT 1 FROM plans WHERE job = (SELECT key FROM jobs WHERE id = ?) AND step = ?"
    while connection.execute(query, (job, step)).fetchone() is None:
        time.sleep(0.001)
    connection.close()
    return time.perf_counter()
