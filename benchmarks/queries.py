"""Plans of single batches over HTTP: latency, rate, worker processes, fairness between tokens."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.http_clients import Client, connect_all
from benchmarks.served import Served
from benchmarks.settings import CLUSTERS, Data, markdown, published_schemes, workload
from seqplan import AsyncClient, Batch, Proposal, make_proposal
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import add_token
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.placement.fleet import Floats
from seqplan.plans.service_routes import PLAN_BATCH, fill_route

CLIENTS, QUERIES = 100, 400
"""Clients, of which each sends its next query when it has its plan; queries in all."""

WORKERS = (1, 2)
"""Planning processes of the service."""

SHARE = 90
"""Clients with one token, of ``CLIENTS``; the others have another."""

BATCHES = 50
"""Different batches, in turn."""


def run(data: Sequence[Data]) -> None:
    """Print latency, rate and CPU by cluster and worker processes; then latency by token."""
    rows, shares = [], []
    for gpus in CLUSTERS:
        proposal = make_proposal(published_schemes(), workload(gpus), data[-1].lengths, seed=0)
        sampler = Sampler(data[-1].lengths, workload(gpus).tokens, workload(gpus).max_len, 0)
        batches = list(sampler.batches(BATCHES))
        for workers in WORKERS:
            times, seconds, cpu_s = _measure_load(proposal, batches, workers)
            rows.append(
                [
                    f"{gpus:,}",
                    str(workers),
                    *(f"{np.percentile(times, share):.2f} s" for share in (50, 99)),
                    f"{QUERIES / seconds:.0f}",
                    f"{cpu_s / QUERIES * 1e3:.0f} ms",
                ]
            )
        of_token = _measure_tokens(proposal, batches, WORKERS[-1])
        shares += [
            [f"{gpus:,}", str(clients), f"{np.median(part):.2f} s"]
            for clients, part in zip((SHARE, CLIENTS - SHARE), of_token, strict=True)
        ]
    print(f"### Plans of single batches, {CLIENTS} clients\n")
    print(
        markdown(
            ["GPUs", "workers", "p50", "p99", "queries/s", "CPU of the service a query"], rows
        ),
        "\n",
    )
    print(markdown(["GPUs", "clients with this token", "p50"], shares), "\n")


def _measure_load(
    proposal: Proposal, batches: Sequence[Batch], workers: int
) -> tuple[Floats, float, float]:
    """Return the time of each query (s), the duration of all, and the service's CPU time (s)."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        with Served("serve", "--port", 0, "--store", store, "--workers", workers) as served:
            return asyncio.run(_load(served, proposal, batches))


async def _load(
    served: Served, proposal: Proposal, batches: Sequence[Batch]
) -> tuple[Floats, float, float]:
    async with AsyncClient(served.url, timeout_s=300) as client:
        uploaded = (await client.upload_proposal(proposal.to_json())).id
        # The processes start with the first queries.
        await asyncio.gather(*(client.plan_batch(uploaded, batch.lengths) for batch in batches[:4]))
    path = fill_route(PLAN_BATCH, proposal=uploaded)
    bodies = [
        json.dumps(
            {"step": batch.step, "ids": batch.ids, "lengths": batch.lengths}, default=int
        ).encode()
        for batch in batches
    ]
    left, times = iter(range(QUERIES)), []

    async def query(client: Client) -> None:
        for number in left:
            begun = time.perf_counter()
            answered = await client.send("POST", path, bodies[number % len(bodies)])
            if answered.status != 200:
                raise RuntimeError(f"{answered.status}: {answered.body.decode()}")
            times.append(answered.at - begun)

    clients = await connect_all(served.host, served.port, CLIENTS)
    cpu_s, begun = served.cpu_s(), time.perf_counter()
    await asyncio.gather(*map(query, clients))
    seconds, cpu_s = time.perf_counter() - begun, served.cpu_s() - cpu_s
    for connection in clients:
        connection.close()
    return np.array(times), seconds, cpu_s


def _measure_tokens(proposal: Proposal, batches: Sequence[Batch], workers: int) -> list[Floats]:
    """Return the time of each query by token (s)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = Store(str(path), None)
        with store.writing() as connection:
            tokens = [add_token(connection, name, "write") for name in ("many", "few")]
        store.close()
        with Served("serve", "--port", 0, "--store", path, "--workers", workers) as served:
            return asyncio.run(_share(served.url, tokens, proposal, batches))


async def _share(
    url: str, tokens: Sequence[str], proposal: Proposal, batches: Sequence[Batch]
) -> list[Floats]:
    clients = [AsyncClient(url, token, timeout_s=300) for token in tokens]
    uploaded = (await clients[0].upload_proposal(proposal.to_json())).id
    await asyncio.gather(*(clients[0].plan_batch(uploaded, batch.lengths) for batch in batches[:4]))
    left = iter(range(QUERIES))
    times: list[list[float]] = [[], []]

    async def query(token: int) -> None:
        for number in left:
            begun = time.perf_counter()
            await clients[token].plan_batch(uploaded, batches[number % len(batches)].lengths)
            times[token].append(time.perf_counter() - begun)

    await asyncio.gather(*(query(int(number >= SHARE)) for number in range(CLIENTS)))
    for client in clients:
        await client.close()
    return [np.array(part) for part in times]
