"""Plans of single batches over HTTP: latency, rate, worker processes, fairness between tokens."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.served import Served
from benchmarks.settings import CLUSTERS, Data, markdown, published_schemes, workload
from seqplan import AsyncClient, Batch, Proposal, make_proposal
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import add_token
from seqplan.planner.batches.sampler import Sampler

CLIENTS, QUERIES = 100, 400
"""Clients, of which each sends its next query when it has its plan; queries in all."""

WORKERS = (1, 2)
"""Planning processes of the service."""

SHARE = 90
"""Clients with one token, of ``CLIENTS``; the others have another."""

BATCHES = 50
"""Different batches, in turn."""


def run(data: Sequence[Data]) -> None:
    """Print latency and rate by cluster and worker processes; then latency by token."""
    rows, shares = [], []
    for gpus in CLUSTERS:
        proposal = make_proposal(published_schemes(), workload(gpus), data[-1].lengths, seed=0)
        sampler = Sampler(data[-1].lengths, workload(gpus).tokens, workload(gpus).max_len, 0)
        batches = list(sampler.batches(BATCHES))
        for workers in WORKERS:
            times, seconds = _serve(proposal, batches, workers)
            every = np.concatenate(times)
            rows.append(
                [
                    f"{gpus:,}",
                    str(workers),
                    *(f"{np.percentile(every, share):.2f} s" for share in (50, 99)),
                    f"{len(every) / seconds:.0f}",
                ]
            )
        shares += [
            [f"{gpus:,}", str(clients), f"{np.median(part):.2f} s"]
            for clients, part in zip((SHARE, CLIENTS - SHARE), times, strict=True)
        ]
    print(f"### Plans of single batches, {CLIENTS} clients\n")
    print(markdown(["GPUs", "workers", "p50", "p99", "queries/s"], rows), "\n")
    print(markdown(["GPUs", "clients with this token", "p50"], shares), "\n")


def _serve(
    proposal: Proposal, batches: Sequence[Batch], workers: int
) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.float64]]], float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = Store(str(path), None)
        with store.writing() as connection:
            tokens = [add_token(connection, name, "write") for name in ("many", "few")]
        store.close()
        with Served("serve", "--port", 0, "--store", path, "--workers", workers) as served:
            return asyncio.run(_measure(served.url, tokens, proposal, batches))


async def _measure(
    url: str, tokens: Sequence[str], proposal: Proposal, batches: Sequence[Batch]
) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.float64]]], float]:
    """Return the time of each query (s) by token, and the duration of all."""
    clients = [AsyncClient(url, token, timeout_s=300) for token in tokens]
    uploaded = (await clients[0].upload_proposal(proposal.to_json())).id
    # The processes start with the first queries.
    await asyncio.gather(*(clients[0].plan_batch(uploaded, batch.lengths) for batch in batches[:4]))
    left = iter(range(QUERIES))
    times: list[list[float]] = [[], []]

    async def query(token: int) -> None:
        for number in left:
            begun = time.perf_counter()
            await clients[token].plan_batch(uploaded, batches[number % len(batches)].lengths)
            times[token].append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(query(int(number >= SHARE)) for number in range(CLIENTS)))
    seconds = time.perf_counter() - begun
    for client in clients:
        await client.close()
    return [np.array(part) for part in times], seconds
