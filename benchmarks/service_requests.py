"""Requests to the service and a sidecar: latency, rate, wake-ups, fairness, look-ahead."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.planning import draw_batches
from benchmarks.services import (
    Answered,
    Client,
    Request,
    Served,
    connect,
    gather,
    request_acknowledgement,
    request_view,
    serve,
)
from benchmarks.settings import CLUSTERS, PROFILE, Data, published_schemes, workload
from benchmarks.tables import Cells, Output, Table
from seqplan import AsyncClient, Batch, Proposal, make_proposal
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import add_token
from seqplan.plans.service_routes import PLAN_BATCH, fill_route

STEPS, CLIENTS = 10, 64
"""Steps of a job, clients of the job of 64 ranks, one each."""

PER_SECOND, SECONDS = 10, 10
"""Each client's mean rate of requests, independent of the responses, and duration."""

Times = list[tuple[float, int]]
"""Milliseconds and status of each request."""


def time_requests(data: Sequence[Data], gpus: Sequence[int] = (CLIENTS, 1024)) -> Output:
    """Time requests to a service, with the last data set, by clients of one process next to it.

    A wake-up is from the moment at which the plan can be read in the store, polled for, to the
    whole view at a rank that waited.
    """
    with serve() as (served, store):
        rows = asyncio.run(_time_jobs(served, store, data[-1], gpus))
    yield Table("requests | p50 (ms) | p99 (ms) | errors", "{} | {} | {} | {}", rows)


async def _time_jobs(
    served: Served, store: Path, source: Data, numbers: Sequence[int]
) -> list[Cells]:
    rows = []
    async with connect(served, 1) as (client,):
        for gpus in numbers:
            proposal = make_proposal(
                published_schemes(), workload(gpus), source.lengths, seed=0, sync=None
            )
            document = json.loads(proposal.to_json())
            answer = await client.post("/v1/proposals/documents", document)
            job = f"gpus-{gpus}"
            request = {"id": job, "proposal": answer["id"], "look_ahead": STEPS}
            await client.post("/v1/jobs", request)
            batches = draw_batches(source, workload(gpus), STEPS)
            async with connect(served, gpus) as ranks:
                rows += await _time_job(store, client, ranks, job, batches)
    return rows


async def _time_job(
    store: Path, client: Client, ranks: Sequence[Client], job: str, batches: Sequence[Batch]
) -> list[Cells]:
    gpus = len(ranks)
    woken = [await _wake(store, client, ranks, job, batch) for batch in batches]
    times = [(took, 200) for of_step in woken[1:] for took in of_step]  # planning has warmed up
    last = np.median([max(of_step) for of_step in woken[1:]])
    rows = [_summarize(f"wake-up of {gpus:,} waiting ranks", [times])]
    rows.append((f"all {gpus:,} views delivered", f"{last:.0f}", "", "0"))
    if gpus == CLIENTS:
        plan = f"/v1/jobs/{job}/plans/{{step}}"
        for label, path in (("plan", plan), ("view", plan + "/ranks/{rank}")):
            parts = await asyncio.gather(
                *(_repeat(client, rank, path) for rank, client in enumerate(ranks))
            )
            text = f"{label} of {gpus} ranks, {CLIENTS} clients, {PER_SECOND * CLIENTS}/s"
            rows.append(_summarize(text, parts))
        paths = [plan.format(step=step % STEPS) for step in range(40)]
        requests: list[Request] = [partial(_get, path) for path in paths]
        parts = [await _time_at_once(ranks, request) for request in requests]
        rows.append(_summarize(f"plan, {CLIENTS} clients at once", parts))
    requests = [request_acknowledgement(job, step) for step in range(STEPS)]
    parts = [await _time_at_once(ranks, request) for request in requests]
    return [*rows, _summarize(f"acknowledgement, {gpus:,} ranks at once", parts)]


async def _wake(
    store: Path, client: Client, ranks: Sequence[Client], job: str, batch: Batch
) -> list[float]:
    """For every rank, ms from the plan's publication to its view."""
    waiting = asyncio.create_task(gather(ranks, request_view(job, batch.step)))
    await asyncio.sleep(1.0)  # all of them wait
    published = asyncio.create_task(asyncio.to_thread(_poll_plan, store, job, batch.step))
    line = {"step": batch.step, "ids": batch.ids, "lengths": batch.lengths}
    await client.post(f"/v1/jobs/{job}/batches", {"batches": [line]})
    at = await published
    return [max(0.0, answer.at - at) * 1000 for answer in await waiting]


def _poll_plan(store: Path, job: str, step: int) -> float:
    """Return the moment at which the store has the plan."""
    connection = sqlite3.connect(store)
    query = "SELECT 1 FROM plans WHERE job = (SELECT key FROM jobs WHERE id = ?) AND step = ?"
    while connection.execute(query, (job, step)).fetchone() is None:
        time.sleep(0.001)
    connection.close()
    return time.perf_counter()


async def _repeat(client: Client, rank: int, path: str) -> Times:
    """Request at random moments, planned before; a late one counts from its moment."""
    random = np.random.default_rng([0, rank])
    due = np.cumsum(random.exponential(1 / PER_SECOND, size=PER_SECOND * SECONDS))
    began = time.perf_counter()
    times = []
    for turn, moment in enumerate(due.tolist()):
        await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
        answer = await client.send("GET", path.format(step=turn % STEPS, rank=rank))
        times.append(((answer.at - began - moment) * 1000, answer.status))
    return times


async def _get(path: str, client: Client, rank: int) -> Answered:
    return await client.send("GET", path)


async def _time_at_once(clients: Sequence[Client], request: Request) -> Times:
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    answers = await asyncio.gather(*(request(client, at) for at, client in enumerate(clients)))
    return [((answer.at - began) * 1000, answer.status) for answer in answers]


def _summarize(label: str, parts: Iterable[Times]) -> Cells:
    times, statuses = zip(*(time for part in parts for time in part), strict=True)
    p50, p99 = np.percentile(times, [50, 99])
    return label, f"{p50:.1f}", f"{p99:.1f}", sum(status != 200 for status in statuses)


BATCHES, SHARE = 50, 0.9
"""Different batches, in turn; clients with one token, the others have another."""


def time_queries(
    data: Sequence[Data],
    numbers: Sequence[int] = tuple(CLUSTERS),
    workers: Sequence[int] = (1, 2),
    clients: int = 100,
    queries: int = 400,
) -> Output:
    """Time plans of single batches over HTTP, by cluster and worker processes, then by token.

    Each client sends its next query when it has its plan.
    """
    table = Table(
        "GPUs | workers | p50 | p99 | queries/s | CPU of the service a query",
        "{:,} | {} | {:.2f} s | {:.2f} s | {:.0f} | {:.0f} ms",
        title=f"Plans of single batches, {clients} clients",
    )
    shares = Table("GPUs | clients with this token | p50", "{:,} | {} | {:.2f} s")
    many = round(SHARE * clients)
    for gpus in numbers:
        proposal = make_proposal(published_schemes(), workload(gpus), data[-1].lengths, seed=0)
        batches = draw_batches(data[-1], workload(gpus), BATCHES)
        for processes in workers:
            with serve("--workers", processes) as (served, _):
                times, seconds, cpu_s = asyncio.run(
                    _load(served, proposal, batches, clients, queries)
                )
            quantiles = np.quantile(times, (0.5, 0.99))
            rates = queries / seconds, cpu_s / queries * 1e3
            table.add(gpus, processes, *quantiles, *rates)
        tokens: list[str] = []
        prepare = partial(_add_tokens, tokens)
        with serve("--workers", workers[-1], prepare=prepare) as (served, _):
            users = [tokens[at >= many] for at in range(clients)]
            by_token = asyncio.run(_share(served.url, users, proposal, batches, queries))
        for token, number in zip(tokens, (many, clients - many), strict=True):
            shares.add(gpus, number, np.median(by_token[token]))
    yield table
    yield shares


def _add_tokens(tokens: list[str], path: Path) -> None:
    store = Store(str(path), None)
    with store.writing() as connection:
        tokens += [add_token(connection, name, "write") for name in ("many", "few")]
    store.close()


async def _upload(client: AsyncClient, proposal: Proposal, batches: Sequence[Batch]) -> str:
    """Upload a proposal, and plan a few batches: processes start with the first queries."""
    uploaded = (await client.upload_proposal(proposal.to_json())).id
    await asyncio.gather(*(client.plan_batch(uploaded, batch.lengths) for batch in batches[:4]))
    return uploaded


async def _repeat_queries(
    queries: int, senders: Sequence[Callable[[int], Awaitable[object]]]
) -> list[list[float]]:
    """Send queries in all by some senders, each its next when it is answered; times by sender."""
    left = iter(range(queries))
    times: list[list[float]] = [[] for _ in senders]

    async def query(at: int) -> None:
        for number in left:
            begun = time.perf_counter()
            await senders[at](number)
            times[at].append(time.perf_counter() - begun)

    await asyncio.gather(*map(query, range(len(senders))))
    return times


async def _load(
    served: Served, proposal: Proposal, batches: Sequence[Batch], clients: int, queries: int
) -> tuple[list[float], float, float]:
    """Return the time of each query, the duration of all, and the service's CPU time (s)."""
    async with AsyncClient(served.url, timeout_s=300) as client:
        path = fill_route(PLAN_BATCH, proposal=await _upload(client, proposal, batches))
    fields = ("step", "ids", "lengths")
    bodies = [
        json.dumps({name: getattr(batch, name) for name in fields}, default=int).encode()
        for batch in batches
    ]

    async def post(connection: Client, number: int) -> None:
        answer = await connection.send("POST", path, bodies[number % len(bodies)])
        assert answer.status == 200, answer

    async with connect(served, clients) as connected:
        cpu_s, begun = served.cpu_s(), time.perf_counter()
        times = await _repeat_queries(queries, [partial(post, client) for client in connected])
        seconds, cpu_s = time.perf_counter() - begun, served.cpu_s() - cpu_s
    return [took for part in times for took in part], seconds, cpu_s


async def _share(
    url: str, users: Sequence[str], proposal: Proposal, batches: Sequence[Batch], queries: int
) -> dict[str, list[float]]:
    """Return the time of each query by token (s)."""
    clients = {token: AsyncClient(url, token, timeout_s=300) for token in users}
    uploaded = await _upload(clients[users[0]], proposal, batches)

    async def plan(token: str, number: int) -> None:
        await clients[token].plan_batch(uploaded, batches[number % len(batches)].lengths)

    times = await _repeat_queries(queries, [partial(plan, token) for token in users])
    for client in clients.values():
        await client.close()
    by_token: dict[str, list[float]] = {token: [] for token in clients}
    for token, part in zip(users, times, strict=True):
        by_token[token] += part
    return by_token


LOOK_AHEAD, WARM_UP = 8, 3


def run_sidecar(
    data: Sequence[Data], gpus: int = CLIENTS, steps: int = 60, step_s: float = 1.0
) -> Output:
    """Run a sidecar on one core next to a job of 64 ranks that takes a second a step.

    Was a plan ever missing, and what did planning cost?
    """
    core = max(os.sched_getaffinity(0))
    table = Table(
        "data | least look-ahead | wait p50 (ms) | wait max (ms) | CPU-s a step",
        "{} | {} | {:.1f} | {:.1f} | {:.2f}",
    )
    for source in data:
        with tempfile.TemporaryDirectory() as folder:
            job = _write_job(Path(folder), source, gpus)
            with Served("sidecar", "--job", job, cores=[core]) as served:
                began = served.cpu_s()
                waits, ahead = asyncio.run(_train(served, gpus, steps, step_s))
                spent = served.cpu_s() - began
        waits = waits[WARM_UP:]
        figures = min(ahead[WARM_UP:]), np.median(waits), max(waits), spent / steps
        table.add(source.name, *figures)
    yield f"{steps} steps of {step_s:g} s, look-ahead {LOOK_AHEAD}, one core"
    yield table


def _write_job(folder: Path, data: Data, gpus: int) -> Path:
    np.save(folder / "lengths.npy", data.lengths)
    where = workload(gpus)
    path = folder / "job.toml"
    path.write_text(
        f'profile = "{PROFILE}"\nlengths = "lengths.npy"\ngpus = {gpus}\nport = 0\n'
        f"max_len = {where.max_len}\ntokens = {where.tokens}\n"
        f"steps = 100000\nlook_ahead = {LOOK_AHEAD}\n"
    )
    return path


async def _train(
    served: Served, gpus: int, steps: int, step_s: float
) -> tuple[list[float], list[int]]:
    """For each step, the slowest rank's wait (ms) and the plans ready when it began."""
    waits, ahead = [], []
    async with connect(served, 1 + gpus) as (connection, *ranks):
        due = time.perf_counter()
        for step in range(steps):
            state = await connection.send("GET", "/v1/jobs/job")
            ahead.append(int(json.loads(state.body)["planned_steps"]) - step)
            start = time.perf_counter()
            views = await gather(ranks, request_view("job", step))
            waits.append((max(view.at for view in views) - start) * 1000)
            due = max(due + step_s, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
            await gather(ranks, request_acknowledgement("job", step))
    return waits, ahead
