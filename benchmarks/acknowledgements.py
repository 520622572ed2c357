"""A step of 10,240 ranks: CPU time of the service, rank by rank and fanned out by rank 0."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.http_clients import Client, connect_all
from benchmarks.served import Served
from benchmarks.settings import Data, markdown, published_schemes
from seqplan.api.rest.connections import raise_file_limit
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job
from seqplan.api.store.tables.plans import StoredPlan, add_plan
from seqplan.api.store.tables.proposals import put_proposal
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.workload import Workload
from seqplan.plans.format.codec import digest, to_json

RANKS, CONNECTIONS, STEPS = 10_240, 5_120, 4
MAX_LEN, TOKENS, SEED = 32_768, 32_000_000, 0


def run(data: Sequence[Data]) -> None:
    """Print CPU-seconds a step, the least and the most of some steps."""
    raise_file_limit()
    plans = _plan_steps(data[-1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        store = Store(str(path))
        with store.writing() as connection:
            put_proposal(connection, "p", {}, "{}")
            job = JobRow(
                id="j", proposal="p", seed=0, look_ahead=8, world_size=RANKS, state="planned"
            )
            add_job(connection, job)
            for plan in plans:
                add_plan(connection, "j", plan, 1.0)
        store.close()
        with Served("serve", "--store", path, "--port", 0) as served:
            measured = asyncio.run(_measure(served, [plan.digest for plan in plans]))
    rows = [[name, f"{min(times):.2f} to {max(times):.2f}"] for name, times in measured.items()]
    print(markdown(["requests of a step", "CPU-s of the service"], rows), "\n")


def _plan_steps(data: Data) -> list[StoredPlan]:
    workload = Workload(RANKS, MAX_LEN, TOKENS)
    proposal = make_proposal(published_schemes(), workload, data.lengths, seed=SEED, sync=None)
    planner = StepPlanner(proposal, PlanningOptions(seed=SEED, prove=False))
    batches = Sampler(data.lengths, TOKENS, MAX_LEN, SEED).batches(2 * STEPS)
    plans = [planner.plan(batch) for batch in batches]
    return [StoredPlan(plan.step, digest(plan), to_json(plan)) for plan in plans]


async def _measure(served: Served, digests: Sequence[str]) -> dict[str, list[float]]:
    clients = await connect_all(served.host, served.port, CONNECTIONS)

    async def for_each_rank(work: Callable[[Client, int], Awaitable[None]]) -> None:
        async def request(client: Client, ranks: range) -> None:
            for rank in ranks:
                await work(client, rank)

        await asyncio.gather(
            *(request(client, range(at, RANKS, CONNECTIONS)) for at, client in enumerate(clients))
        )

    async def views(step: int) -> None:
        await for_each_rank(lambda client, rank: _get(client, f"plans/{step}/ranks/{rank}"))

    async def plan(step: int) -> None:
        await _get(clients[0], f"plans/{step}")

    async def one_by_one(step: int) -> None:
        fields = {"step": step, "digest": digests[step], "measured_ms": 12.5}
        await for_each_rank(lambda client, rank: _post(client, "acks", {**fields, "rank": rank}))

    async def together(step: int) -> None:
        fields = {"step": step, "digest": digests[step], "measured_ms": [12.5] * RANKS}
        await _post(clients[0], "acks/many", {**fields, "ranks": list(range(RANKS))})

    first, second = range(STEPS), range(STEPS, 2 * STEPS)
    kinds = {
        f"{RANKS} views, as HttpSource requests them": (views, first),
        "one plan, as FanOutSource requests it": (plan, second),
        f"{RANKS} acknowledgements, as HttpSource sends them": (one_by_one, first),
        "one acknowledgement for all, as FanOutSource sends it": (together, second),
    }
    return {
        name: [await _cpu_s(served, work, step) for step in steps]
        for name, (work, steps) in kinds.items()
    }


async def _get(client: Client, path: str) -> None:
    answer = await client.send("GET", f"/v1/jobs/j/{path}")
    assert answer.status == 200, answer


async def _post(client: Client, path: str, body: object) -> None:
    answer = await client.send("POST", f"/v1/jobs/j/{path}", json.dumps(body).encode())
    assert answer.status == 200, answer


async def _cpu_s(served: Served, work: Callable[[int], Awaitable[None]], step: int) -> float:
    before = _cpu_of(served.process.pid)
    await work(step)
    return _cpu_of(served.process.pid) - before


def _cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
