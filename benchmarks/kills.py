"""Kill -9 at random moments while three jobs train: is anything lost, doubled or deleted?"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, func, select

from benchmarks.killed_postgresql import KilledPostgresql
from benchmarks.settings import Data, markdown
from benchmarks.trained_jobs import (
    JOBS,
    PATIENCE_S,
    WORLD,
    RepeatedRequests,
    Supervised,
    Uploads,
    finish,
    raise_failures,
    send,
    train_jobs,
)
from seqplan.api.store import schema

KILLS = {"SQLite": 150, "PostgreSQL": 60}
SEED = 0
SERVICE, PLANNER, FORKING = "service", "planning process", "server that forks them"
STORE = "PostgreSQL, all processes"


def run(data: Sequence[Data]) -> None:
    """Print kills and the progress meanwhile; raises if anything was lost."""
    rows = []
    for kind, kills in KILLS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append([kind, *_run(kind, kills, Path(folder), data[-1])])
    head = ["store", "killed", "steps of 3 jobs", "uploads", "jobs deleted", "seconds"]
    print("Each step was delivered once to each of 4 ranks, with the digest of an undisturbed run;")
    print("each acknowledgement, upload and deletion that was answered is there at the end.\n")
    print(markdown(head, rows), "\n")


def _run(kind: str, kills: int, folder: Path, data: Data) -> list[str]:
    steps = kills + 2
    with ExitStack() as stack:
        undisturbed = stack.enter_context(Supervised(str(folder / "calm.db"), folder / "calm"))
        expected = train_jobs(undisturbed, data, steps, lambda step: None)
        finish(expected)
        database = None
        url = str(folder / "killed.db")
        if kind == "PostgreSQL":
            database = stack.enter_context(KilledPostgresql(folder / "postgresql"))
            url = database.url
        served = stack.enter_context(Supervised(url, folder / "files"))
        done, killed = [0], dict.fromkeys((SERVICE, PLANNER, FORKING), 0)

        def may_begin(step: int) -> None:
            while step > done[0] + 1:  # so that steps are left for the last kill
                time.sleep(0.005)

        ranks = train_jobs(served, data, steps, may_begin)
        uploads, deletions = Uploads(served.address), _Deletions(served.address)
        began = time.perf_counter()
        random = np.random.default_rng(SEED)
        for _ in range(kills):
            before = sum(len(rank.steps) for rank in ranks)
            waits_until = time.monotonic() + 5
            while sum(len(rank.steps) for rank in ranks) == before:
                raise_failures(ranks)
                if time.monotonic() > waits_until:
                    break
                time.sleep(0.005)
            time.sleep(float(random.uniform(0, 0.4)))
            who = _kill_one(served, database, float(random.random()), random)
            killed[who] = killed.get(who, 0) + 1
            done[0] += 1
        finish(ranks)
        uploads.end()
        deletions.end()
        took = time.perf_counter() - began
        for rank, calm in zip(ranks, expected, strict=True):
            assert rank.steps == list(range(steps)), rank.steps
            assert rank.digests == calm.digests
        _check(served, uploads, deletions, steps)
        engine_url = url if "://" in url else f"sqlite:///{url}"
        _check_rows(engine_url)
    assert all(killed.values()), killed
    names = ", ".join(f"{count} × {who}" for who, count in killed.items())
    counts = (steps * JOBS, len(uploads.data_sets), len(deletions.jobs), round(took))
    return [names, *map(str, counts)]


def _kill_one(
    served: Supervised, database: KilledPostgresql | None, draw: float, random: np.random.Generator
) -> str:
    if database is not None and draw < 0.5:
        database.kill_and_begin()
        return STORE
    processes = _planning_processes(served.process)
    if processes and draw < 0.75:
        process = int(random.choice(sorted(processes)))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return processes[process]
    served.kill_and_begin()
    return SERVICE


def _check(served: Supervised, uploads: Uploads, deletions: _Deletions, steps: int) -> None:
    """Raise unless all that was answered is there, and nothing else."""
    for number in range(JOBS):
        job = json.loads(send(served.address, "GET", f"/v1/jobs/job{number}"))
        assert job["acknowledged"] == [steps - 1] * WORLD, job
        assert job["planned_steps"] == steps
    for key in uploads.data_sets:
        body = json.dumps({"proposal": served.proposal, "lengths": key, "steps": 1, "tokens": 100})
        send(served.address, "POST", "/v1/jobs", body.encode())  # reads the array, by its sha256
    listed = json.loads(send(served.address, "GET", "/v1/jobs?limit=1000"))["items"]
    assert not {row["id"] for row in listed} & set(deletions.jobs)


def _check_rows(url: str) -> None:
    """Raise unless the rows of deleted jobs are deleted, and those of no others."""
    engine = create_engine(url)
    ends = time.monotonic() + PATIENCE_S
    while True:
        with engine.begin() as connection:
            left = connection.execute(select(func.count()).select_from(schema.removals)).scalar()
            keys = set(connection.execute(select(schema.jobs.c.key)).scalars())
            tables = (schema.plans, schema.ranks, schema.batches, schema.measurements)
            used = {
                key
                for table in tables
                for key in connection.execute(select(table.c.job).distinct()).scalars()
            }
        if not left:
            break
        assert time.monotonic() < ends, left
        time.sleep(0.2)
    engine.dispose()
    assert used <= keys, used - keys


class _Deletions(RepeatedRequests):
    """Jobs with pushed batches that are deleted at once; ``jobs``: those with a response."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.jobs: list[str] = []
        super().__init__(address)

    def send(self, number: int) -> None:
        job = f"deleted{number}"
        listed = json.loads(send(self.address, "GET", "/v1/proposals"))["items"]
        body = json.dumps({"id": job, "proposal": listed[0]["id"]}).encode()
        send(self.address, "POST", "/v1/jobs", body, {"Idempotency-Key": job})
        batches = [{"step": step, "ids": [1, 2], "lengths": [100, 200]} for step in range(1500)]
        pushed = json.dumps({"batches": batches}).encode()
        send(self.address, "POST", f"/v1/jobs/{job}/batches", pushed, {"Idempotency-Key": "b"})
        send(self.address, "DELETE", f"/v1/jobs/{job}", accepted=(204, 404))
        self.jobs.append(job)


def _planning_processes(service: int) -> dict[int, str]:
    """Return the planning processes of a service and the server that forks them, by number."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if b"multiprocessing.forkserver" in line:
            parents[int(path.parent.name)] = int(fields[1])
    servers = {process for process, parent in parents.items() if parent == service}
    planning = {process for process, parent in parents.items() if parent in servers}
    return dict.fromkeys(servers, FORKING) | dict.fromkeys(planning, PLANNER)
