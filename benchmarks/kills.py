"""Kill -9 at random moments while three jobs train: is anything lost, doubled or deleted?"""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, func, select

from benchmarks.killed_postgresql import KilledPostgresql
from benchmarks.served import Served
from benchmarks.settings import Data, markdown
from seqplan.api.store import schema
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.workload import Workload
from seqplan.runtime.sources.http_source import HttpSource

KILLS = {"SQLite": 150, "PostgreSQL": 60}
JOBS, WORLD, SEED = 3, 4, 0
PATIENCE_S = 120.0
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
        undisturbed = stack.enter_context(_Supervised(str(folder / "calm.db"), folder / "calm"))
        expected = _train(undisturbed, data, steps, lambda step: None)
        _finish(expected)
        database = None
        url = str(folder / "killed.db")
        if kind == "PostgreSQL":
            database = stack.enter_context(KilledPostgresql(folder / "postgresql"))
            url = database.url
        served = stack.enter_context(_Supervised(url, folder / "files"))
        done, killed = [0], dict.fromkeys((SERVICE, PLANNER, FORKING), 0)

        def may_begin(step: int) -> None:
            while step > done[0] + 1:  # so that steps are left for the last kill
                time.sleep(0.005)

        ranks = _train(served, data, steps, may_begin)
        uploads, deletions = _Uploads(served.address), _Deletions(served.address)
        began = time.perf_counter()
        random = np.random.default_rng(SEED)
        for _ in range(kills):
            before = sum(len(rank.steps) for rank in ranks)
            waits_until = time.monotonic() + 5
            while sum(len(rank.steps) for rank in ranks) == before:
                _raise_failures(ranks)
                if time.monotonic() > waits_until:
                    break
                time.sleep(0.005)
            time.sleep(float(random.uniform(0, 0.4)))
            who = _kill_one(served, database, float(random.random()), random)
            killed[who] = killed.get(who, 0) + 1
            done[0] += 1
        _finish(ranks)
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
    served: _Supervised, database: KilledPostgresql | None, draw: float, random: np.random.Generator
) -> str:
    if database is not None and draw < 0.5:
        database.kill_and_begin()
        return STORE
    processes = served.planning_processes()
    if processes and draw < 0.75:
        process = int(random.choice(sorted(processes)))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return processes[process]
    served.kill_and_begin()
    return SERVICE


def _check(served: _Supervised, uploads: _Uploads, deletions: _Deletions, steps: int) -> None:
    """Raise unless all that was answered is there, and nothing else."""
    for number in range(JOBS):
        job = json.loads(_ask(served.address, "GET", f"/v1/jobs/job{number}"))
        assert job["acknowledged"] == [steps - 1] * WORLD, job
        assert job["planned_steps"] == steps
    for key in uploads.data_sets:
        body = json.dumps({"proposal": served.proposal, "lengths": key, "steps": 1, "tokens": 100})
        _ask(served.address, "POST", "/v1/jobs", body.encode())  # reads the array, by its sha256
    listed = json.loads(_ask(served.address, "GET", "/v1/jobs?limit=1000"))["items"]
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


class _Rank:
    """A rank that fetches and acknowledges step after step, in a thread."""

    def __init__(
        self, url: str, job: str, rank: int, steps: int, may_begin: Callable[[int], None]
    ) -> None:
        self.steps: list[int] = []
        self.digests: list[str | None] = []
        self.failure: Exception | None = None
        self._rank, self._last = rank, steps
        self._may_begin = may_begin
        self._source = HttpSource(url, job, outage_s=PATIENCE_S)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for step in range(self._last):
                self._may_begin(step)
                view = self._source.view(step, self._rank, PATIENCE_S)
                self.steps.append(view.step)
                self.digests.append(view.digest)
                self._source.acknowledge(step, self._rank, view.digest, 1.0)
            self._source.close()  # which sends the acknowledgements that are still queued
        except Exception as error:
            self.failure = error


def _train(
    served: _Supervised, data: Data, steps: int, may_begin: Callable[[int], None]
) -> list[_Rank]:
    """Begin the jobs, and their ranks."""
    lengths, workload = data.lengths[:20_000], Workload(WORLD, 4096, 8000)
    file = io.BytesIO()
    np.save(file, lengths)
    key = json.loads(_ask(served.address, "POST", "/v1/lengths", file.getvalue()))["id"]
    document = make_proposal(load_shipped("llama-7b-a800-80gb"), workload, lengths, sync=None)
    response = _ask(served.address, "POST", "/v1/proposals/documents", document.to_json().encode())
    served.proposal = json.loads(response)["id"]
    for number in range(JOBS):
        body = {"id": f"job{number}", "proposal": served.proposal, "lengths": key, "seed": number}
        body |= {"steps": steps, "look_ahead": 3}
        _ask(served.address, "POST", "/v1/jobs", json.dumps(body).encode())
    return [
        _Rank(served.url, f"job{number}", rank, steps, may_begin)
        for number in range(JOBS)
        for rank in range(WORLD)
    ]


class _RepeatedRequests(ABC):
    """Requests that a thread repeats until it is stopped."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(0.3):
            number += 1
            self.send(number)

    @abstractmethod
    def send(self, number: int) -> None:
        """Send the requests of one repetition."""

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


class _Uploads(_RepeatedRequests):
    """Uploads of 8 MB, each of other lengths; ``data_sets``: those with a response."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.data_sets: list[str] = []
        super().__init__(address)

    def send(self, number: int) -> None:
        file = io.BytesIO()
        np.save(file, np.arange(number, number + 1_000_000) % 4000 + 1)
        self.data_sets.append(
            json.loads(_ask(self.address, "POST", "/v1/lengths", file.getvalue()))["id"]
        )


class _Deletions(_RepeatedRequests):
    """Jobs with pushed batches that are deleted at once; ``jobs``: those with a response."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.jobs: list[str] = []
        super().__init__(address)

    def send(self, number: int) -> None:
        job = f"deleted{number}"
        listed = json.loads(_ask(self.address, "GET", "/v1/proposals"))["items"]
        body = json.dumps({"id": job, "proposal": listed[0]["id"]}).encode()
        _ask(self.address, "POST", "/v1/jobs", body, {"Idempotency-Key": job})
        batches = [{"step": step, "ids": [1, 2], "lengths": [100, 200]} for step in range(1500)]
        pushed = json.dumps({"batches": batches}).encode()
        _ask(self.address, "POST", f"/v1/jobs/{job}/batches", pushed, {"Idempotency-Key": "b"})
        _ask(self.address, "DELETE", f"/v1/jobs/{job}", accepted=(204, 404))
        self.jobs.append(job)


def _ask(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    accepted: Sequence[int] = (200, 201, 202, 204),
) -> bytes:
    """Retry until the response is no outage."""
    kind = {"Content-Type": "application/json"}
    ends = time.monotonic() + PATIENCE_S
    while True:
        connection = HTTPConnection(*address, timeout=30)
        try:
            connection.request(method, path, body, {**kind, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status in accepted:
                return text
            assert answer.status in (500, 502, 503), (method, path, answer.status, text)
        except (OSError, HTTPException):
            answer = None  # killed meanwhile
        finally:
            connection.close()
        assert time.monotonic() < ends, (method, path)
        time.sleep(0.1)


def _finish(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.thread.join()
    _raise_failures(ranks)


def _raise_failures(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if rank.failure is not None:
            raise rank.failure


class _Supervised:
    """A service that is begun again, on the same port, when it has been killed."""

    proposal = ""

    def __init__(self, url: str, files: Path) -> None:
        self._arguments: tuple[Any, ...] = ("serve", "--store", url, "--files", files)

    def __enter__(self) -> _Supervised:
        self._served = Served(*self._arguments, "--port", 0)
        self.address, self.url = (self._served.host, self._served.port), self._served.url
        return self

    def __exit__(self, *_: object) -> None:
        self._served.end()

    def kill_and_begin(self) -> None:
        self._served.kill()
        self._served = Served(*self._arguments, "--port", self.address[1])

    def planning_processes(self) -> dict[int, str]:
        """Its planning processes and the server that forks them, by number."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
                line = (path.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if b"multiprocessing.forkserver" in line:
                parents[int(path.parent.name)] = int(fields[1])
        service = self._served.process.pid
        servers = {process for process, parent in parents.items() if parent == service}
        planning = {process for process, parent in parents.items() if parent in servers}
        return dict.fromkeys(servers, FORKING) | dict.fromkeys(planning, PLANNER)
