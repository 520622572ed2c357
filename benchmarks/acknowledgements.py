"""A service on one core with a job of 10,240 simulated ranks: CPU, bytes and waits for views."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.http_clients import Answered, connect_all
from benchmarks.http_clients import Client as Connection
from benchmarks.served import Served
from benchmarks.settings import Data, markdown, published_schemes
from seqplan import Client
from seqplan.api.rest.connections import raise_file_limit

RANKS, CONNECTIONS, STEPS = 10_240, 5_120, 1_000
ALONE = 10
"""Steps at the end in which each rank requests its view and acknowledges by itself."""

MAX_LEN, TOKENS = 32_768, 32_000_000


@dataclass(frozen=True)
class _Step:
    """One step: waits for views (s), CPU-seconds of the service, bytes of plan or views."""

    alone: bool
    wait_s: float
    cpu_s: float
    sent: int


def run(data: Sequence[Data]) -> None:
    """Print a row for steps that rank 0 fans out, and one for ranks by themselves."""
    raise_file_limit()
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "s.db"
        arguments = ("serve", "--store", store, "--port", 0, "--log", "error")
        with Served(*arguments, cores=[core]) as served:
            _begin(served.url, data[-1])
            began = time.perf_counter()
            steps = asyncio.run(_train(served))
            took_s = time.perf_counter() - began
            with Client(served.url) as client:
                predicted_s = [
                    step.predicted_ms / 1e3 for step in client.items(client.list_steps, "j")
                ]
        kept = sum(path.stat().st_size for path in Path(folder).glob("s.db*") if path.is_file())
    in_time = sum(
        step.wait_s <= predicted for step, predicted in zip(steps, predicted_s, strict=True)
    )
    print(
        f"{len(steps):,} steps of {RANKS:,} ranks, service and planner on one core: {took_s:,.0f} "
        f"s, of {sum(predicted_s):,.0f} s that the steps are predicted to take. All views within "
        f"their step's predicted time: {in_time:,} steps. The store: {kept / 2**20:,.0f} MiB\n"
    )
    rows = []
    for name, alone in (("rank 0 for all", False), ("each rank", True)):
        of = [step for step in steps if step.alone == alone]
        if not of:
            continue
        cpu_s, sent = (np.mean([getattr(step, name) for step in of]) for name in ("cpu_s", "sent"))
        waits = [step.wait_s for step in of]
        rows.append(
            [
                name,
                f"{len(of):,}",
                f"{np.median(waits):.2f}",
                f"{max(waits):.2f}",
                f"{cpu_s:.2f}",
                f"{1e6 * cpu_s / RANKS:,.0f}",
                f"{sent / RANKS:,.0f}",
            ]
        )
    head = ["requests by", "steps", "wait for views, median (s)", "most (s)", "CPU-s a step"]
    print(markdown([*head, "CPU-µs a rank", "bytes sent a rank"], rows), "\n")


def _begin(url: str, data: Data) -> None:
    """Begin the job, planned by a proposal of the service."""
    with Client(url) as client:
        lengths = client.upload_lengths(data.lengths).id
        profile = client.upload_profile(dict(published_schemes().document)).id
        proposal = client.create_proposal(
            profile=profile,
            lengths=lengths,
            gpus=RANKS,
            max_len=MAX_LEN,
            tokens=TOKENS,
            sync="none",
        ).id
        for state in client.watch(client.get_proposal, proposal):
            if state.error:
                raise RuntimeError(state.error)
        client.create_job(id="j", proposal=proposal, lengths=lengths, steps=STEPS)


async def _train(served: Served) -> list[_Step]:
    """Request and acknowledge each step as soon as the one before is acknowledged."""
    (first,) = await connect_all(served.host, served.port, 1)

    each: dict[int, Connection] = {}

    async def for_each_rank(
        work: Callable[[Connection, int], Awaitable[Answered]],
    ) -> list[Answered]:
        async def request(at: int) -> list[Answered]:
            if at not in each:  # they stay open from step to step
                each[at] = await Connection.connect(served.host, served.port)
            return [await work(each[at], rank) for rank in range(at, RANKS, CONNECTIONS)]

        answers = await asyncio.gather(*map(request, range(CONNECTIONS)))
        return [answer for some in answers for answer in some]

    steps = []
    for step in range(STEPS):
        alone = step >= STEPS - ALONE
        cpu_s, began = served.cpu_s(), time.perf_counter()
        if alone:
            answers = await for_each_rank(partial(_get_view, step))
        else:
            answers = [await _get(first, f"plans/{step}?wait=60")]
        wait_s = max(answer.at for answer in answers) - began
        if alone:
            await for_each_rank(partial(_acknowledge, step))
        else:
            many = {
                "step": step,
                "digest": None,
                "ranks": list(range(RANKS)),
                "measured_ms": [12.5] * RANKS,
            }
            await _post(first, "acks/many", {"step": step, "digest": None, **many})
        sent = sum(len(answer.body) for answer in answers)
        steps.append(_Step(alone, wait_s, served.cpu_s() - cpu_s, sent))
    for connection in (first, *each.values()):
        connection.close()
    return steps


async def _get_view(step: int, connection: Connection, rank: int) -> Answered:
    return await _get(connection, f"plans/{step}/ranks/{rank}?wait=60")


async def _acknowledge(step: int, connection: Connection, rank: int) -> Answered:
    fields = {"step": step, "rank": rank, "digest": None, "measured_ms": 12.5}
    return await _post(connection, "acks", fields)


async def _get(connection: Connection, path: str) -> Answered:
    answer = await connection.send("GET", f"/v1/jobs/j/{path}")
    assert answer.status == 200, answer
    return answer


async def _post(connection: Connection, path: str, body: object) -> Answered:
    answer = await connection.send("POST", f"/v1/jobs/j/{path}", json.dumps(body).encode())
    assert answer.status == 200, answer
    return answer
