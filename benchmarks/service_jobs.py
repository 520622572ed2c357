"""Large jobs on the service: 10,240 ranks on one core, and the deletion of 20,000 steps."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from benchmarks.services import (
    Answered,
    Client,
    Request,
    Served,
    connect,
    request_acknowledgement,
    request_view,
    serve,
)
from benchmarks.settings import Data, published_schemes
from benchmarks.tables import Output, Table
from benchmarks.trained_jobs import Repeated
from seqplan import Client as ServiceClient
from seqplan.api.rest.connections import raise_file_limit
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job, job_key
from seqplan.api.store.tables.proposals import put_proposal


@dataclass(frozen=True)
class ManyRanks:
    """A job of many ranks; ``alone``: steps at the end in which each rank requests by itself."""

    ranks: int = 10_240
    connections: int = 5_120
    steps: int = 1_000
    alone: int = 10
    tokens: int = 32_000_000


@dataclass(frozen=True)
class _Step:
    """One step: waits for views (s), CPU-seconds of the service, bytes of plan or views."""

    alone: bool
    wait_s: float
    cpu_s: float
    sent: int


def train_many_ranks(data: Sequence[Data], setting: ManyRanks | None = None) -> Output:
    """Train simulated ranks on a service on one core: CPU, bytes and waits for views.

    A row for steps that rank 0 fans out, and one for ranks by themselves.
    """
    setting = setting or ManyRanks()
    raise_file_limit()
    core = max(os.sched_getaffinity(0))
    with serve("--log", "error", cores=[core]) as (served, store):
        _begin_job(served.url, data[-1], setting)
        began = time.perf_counter()
        steps = asyncio.run(_train(served, setting))
        took_s = time.perf_counter() - began
        with ServiceClient(served.url) as client:
            predicted_s = [step.predicted_ms / 1e3 for step in client.items(client.list_steps, "j")]
        files = [path for path in store.parent.glob("store.db*") if path.is_file()]
        kept = sum(path.stat().st_size for path in files)
    in_time = sum(
        step.wait_s <= predicted for step, predicted in zip(steps, predicted_s, strict=True)
    )
    yield (
        f"{len(steps):,} steps of {setting.ranks:,} ranks, service and planner on one core: "
        f"{took_s:,.0f} s, of {sum(predicted_s):,.0f} s that the steps are predicted to take. "
        f"All views within their step's predicted time: {in_time:,} steps. "
        f"The store: {kept / 2**20:,.0f} MiB"
    )
    table = Table(
        "requests by | steps | wait for views, median (s) | most (s) | CPU-s a step"
        " | CPU-µs a rank | bytes sent a rank",
        "{} | {:,} | {:.2f} | {:.2f} | {:.2f} | {:,.0f} | {:,.0f}",
    )
    for name, alone in (("rank 0 for all", False), ("each rank", True)):
        if of := [step for step in steps if step.alone == alone]:
            waits = [step.wait_s for step in of]
            cpu_s, sent = np.mean([(step.cpu_s, step.sent) for step in of], axis=0)
            figures = np.median(waits), max(waits), cpu_s
            table.add(name, len(of), *figures, 1e6 * cpu_s / setting.ranks, sent / setting.ranks)
    yield table


def _begin_job(url: str, data: Data, setting: ManyRanks) -> None:
    """Begin the job, planned by a proposal of the service."""
    with ServiceClient(url) as client:
        lengths = client.upload_lengths(data.lengths).id
        proposal = client.create_proposal(
            profile=client.upload_profile(dict(published_schemes().document)).id,
            lengths=lengths,
            gpus=setting.ranks,
            max_len=32_768,
            tokens=setting.tokens,
            sync="none",
        ).id
        for state in client.watch(client.get_proposal, proposal):
            if state.error:
                raise RuntimeError(state.error)
        client.create_job(id="j", proposal=proposal, lengths=lengths, steps=setting.steps)


async def _train(served: Served, setting: ManyRanks) -> list[_Step]:
    """Request and acknowledge each step as soon as the one before is acknowledged."""
    steps = []
    async with AsyncExitStack() as stack:
        (first,) = await stack.enter_async_context(connect(served, 1))
        every: list[Client] = []
        for step in range(setting.steps):
            alone = step >= setting.steps - setting.alone
            cpu_s, began = served.cpu_s(), time.perf_counter()
            if alone and not every:  # they stay open from step to step
                every = await stack.enter_async_context(connect(served, setting.connections))
            if alone:
                answers = await _for_each_rank(every, request_view("j", step), setting.ranks)
            else:
                answers = [await first.send("GET", f"/v1/jobs/j/plans/{step}?wait=60")]
            assert all(answer.status == 200 for answer in answers)
            wait_s = max(answer.at for answer in answers) - began
            if alone:
                request = request_acknowledgement("j", step, measured_ms=12.5)
                await _for_each_rank(every, request, setting.ranks)
            else:
                ranks, times = list(range(setting.ranks)), [12.5] * setting.ranks
                body = {"step": step, "digest": None, "ranks": ranks, "measured_ms": times}
                await first.post("/v1/jobs/j/acks/many", body)
            sent = sum(len(answer.body) for answer in answers)
            steps.append(_Step(alone, wait_s, served.cpu_s() - cpu_s, sent))
    return steps


async def _for_each_rank(clients: Sequence[Client], request: Request, ranks: int) -> list[Answered]:
    """Make a request for each rank; a client makes those of several, one after another."""

    async def request_all(at: int) -> list[Answered]:
        return [await request(clients[at], rank) for rank in range(at, ranks, len(clients))]

    answers = await asyncio.gather(*map(request_all, range(len(clients))))
    return [answer for some in answers for answer in some]


STEPS, RANKS = 20_000, 64
LINE_BYTES = 20_000
"""A plan of 64 GPUs."""

SETTLED_S = 300.0


def delete_job(data: Sequence[Data], steps: int = STEPS, quiet_s: float = 10.0) -> Output:
    """Delete a job of 20,000 steps and 64 ranks, and time another job's acknowledgements."""
    with serve(prepare=partial(_fill, steps=steps)) as (served, path):
        filled = path.stat().st_size
        connection = HTTPConnection(served.host, served.port, timeout=60)
        quiet = Repeated(partial(_acknowledge, connection), pause_s=0.005)
        time.sleep(quiet_s)
        quiet.end()
        busy = Repeated(partial(_acknowledge, connection), pause_s=0.005)
        began = time.perf_counter()
        with ServiceClient(served.url) as client:
            client.delete_job("old")
        answered = time.perf_counter() - began
        while _has_rows(path):
            assert time.perf_counter() - began < SETTLED_S
            time.sleep(0.2)
        took = time.perf_counter() - began
        busy.end()
        connection.close()
        left = path.stat().st_size
    yield (
        f"{steps} plans of {LINE_BYTES // 1000} kB and {steps * RANKS} times: DELETE answered in "
        f"{1000 * answered:.0f} ms, all rows gone after {took:.0f} s; the store went from "
        f"{filled >> 20} to {left >> 20} MiB"
    )
    yield Table(
        "acknowledgements | number | median ms | p99 ms | worst ms",
        "{} | {} | {:.1f} | {:.1f} | {:.1f}",
        (
            (name, len(times), *np.quantile(times, (0.5, 0.99)), max(times))
            for name, times in (("before", quiet.results), ("during the deletion", busy.results))
        ),
    )


def _fill(path: Path, steps: int) -> None:
    """Write a planned job of many steps, and another that runs."""
    store = Store(str(path))
    with store.writing() as connection:
        put_proposal(connection, "p", {}, "{}")
        for name in ("old", "running"):
            job = JobRow(id=name, proposal="p", seed=0, look_ahead=8, world_size=RANKS)
            add_job(connection, JobRow(**{**vars(job), "state": "planned"}))
        old, running = (job_key(connection, name) for name in ("old", "running"))
    store.close()
    database = sqlite3.connect(path)
    insert = "INSERT INTO plans (job, step, digest, line, planning_ms) VALUES (?, ?, ?, ?, 1.0)"
    plan = ("sha256:" + "0" * 64, "x" * LINE_BYTES)
    database.executemany(insert, ((old, step, *plan) for step in range(steps)))
    database.executemany(insert, ((running, step, "sha256:x", "{}") for step in range(100_000)))
    times = ((old, step, rank, 1.0) for step in range(steps) for rank in range(RANKS))
    database.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?)", times)
    ranks = ((old, rank, steps - 1, 0.0) for rank in range(RANKS))
    database.executemany("INSERT INTO ranks VALUES (?, ?, ?, ?)", ranks)
    database.commit()
    database.close()


def _has_rows(path: Path) -> bool:
    """Return whether there are rows of the deleted job, or pages to give back."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    left = database.execute("SELECT count(*) FROM removals").fetchone()[0]
    free = database.execute("PRAGMA freelist_count").fetchone()[0]
    database.close()
    return bool(left) or free > 1024


def _acknowledge(connection: HTTPConnection, number: int) -> float:
    """Acknowledge a step of the running job; return the time of the response (ms)."""
    step = number % 100_000
    body = json.dumps({"step": step, "rank": 0, "digest": None, "measured_ms": 1.0})
    began = time.perf_counter()
    kind = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/jobs/running/acks", body, kind)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return (time.perf_counter() - began) * 1e3
