"""The service over HTTP: many clients asking for a plan, waking waiting ranks, 1,024 views."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.settings import PROFILE, Data, cluster, markdown
from seqplan.planner.batch import Batch
from seqplan.planner.make_proposal import make_proposal
from seqplan.planner.sampler import Sampler
from seqplan.profiler.shipped import shipped

CLIENTS, GETS, STEPS, SEED = 64, 20, 10, 0


def run(data: Sequence[Data]) -> None:
    """Print a table for the last data set. Clients are threads of one process beside the service.

    A wake-up is from the moment at which the plan can be read in the store, polled for, to the
    whole answer at a rank that waited; the rank's view is made in between.
    """
    lengths = data[-1].lengths
    rows = []
    with tempfile.TemporaryDirectory() as folder, _Serving(Path(folder) / "store.db") as served:
        for gpus in (64, 1024):
            document = make_proposal(shipped(PROFILE), cluster(gpus), lengths, seed=SEED)
            proposal = served.post("/v1/proposals/documents", json.loads(document.to_json()))["id"]
            job = f"gpus-{gpus}"
            served.post("/v1/jobs", {"id": job, "proposal": proposal, "look_ahead": STEPS})
            where = cluster(gpus)
            batches = list(Sampler(lengths, where.tokens, where.max_len, SEED).batches(STEPS))
            if gpus == CLIENTS:
                woken = np.concatenate([served.woken_ms(job, b, gpus) for b in batches])
                rows.append(_row(f"wake-up of {gpus} waiting ranks", woken, 0))
                rows.append(_row(f"plan of {gpus} ranks, {CLIENTS} clients", *served.gets(job)))
                continue
            served.push(job, batches[0])
            served.get(f"/v1/jobs/{job}/plans/0?wait=60")
            began = time.perf_counter()
            paths = [f"/v1/jobs/{job}/plans/0/ranks/{rank}" for rank in range(gpus)]
            with ThreadPoolExecutor(CLIENTS) as clients:
                statuses = list(clients.map(served.get, paths))
            took = (time.perf_counter() - began) * 1000
            errors = str(sum(status != 200 for status in statuses))
            rows.append(
                [f"all {gpus:,} views, {CLIENTS} clients", f"{took:.0f} in all", "", errors]
            )
    print(markdown(["requests", "p50 (ms)", "p99 (ms)", "errors"], rows), "\n")


def _row(what: str, times_ms: Any, errors: int) -> list[str]:
    p50, p99 = np.percentile(times_ms, [50, 99])
    return [what, f"{p50:.1f}", f"{p99:.1f}", str(errors)]


class _Serving:
    """A service process, and asking it; every thread keeps its connection."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._mine = threading.local()

    def __enter__(self) -> _Serving:
        command = (sys.executable, "-m", "seqplan.api.cli", "serve", "--port", "0", "--store")
        self._process = subprocess.Popen(
            [*command, str(self._store)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        found = re.search(r"http://(\S+)", self._process.stderr.readline())
        assert found is not None
        self._host = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def get(self, path: str) -> int:
        """The status; the body is read."""
        return self._ask("GET", path, None)[0]

    def post(self, path: str, body: Any) -> Any:
        status, answer = self._ask("POST", path, json.dumps(body))
        assert 200 <= status < 300, answer
        return json.loads(answer)

    def push(self, job: str, batch: Batch) -> None:
        item = {"step": batch.step, "ids": batch.ids, "lengths": batch.lengths}
        self.post(f"/v1/jobs/{job}/batches", {"batches": [item]})

    def gets(self, job: str) -> tuple[list[float], int]:
        """Times of ``GETS`` gets by each of the clients at once, and errors."""

        def client(_: int) -> list[tuple[float, int]]:
            found = []
            for turn in range(GETS):
                began = time.perf_counter()
                status = self.get(f"/v1/jobs/{job}/plans/{turn % STEPS}")
                found.append(((time.perf_counter() - began) * 1000, status))
            return found

        with ThreadPoolExecutor(CLIENTS) as clients:
            found = [item for part in clients.map(client, range(CLIENTS)) for item in part]
        return [took for took, _ in found], sum(status != 200 for _, status in found)

    def woken_ms(self, job: str, batch: Batch, ranks: int) -> Any:
        """For every rank, from the plan's publication to its view."""

        def rank(number: int) -> float:
            status = self.get(f"/v1/jobs/{job}/plans/{batch.step}/ranks/{number}?wait=60")
            assert status == 200
            return time.perf_counter()

        with ThreadPoolExecutor(ranks) as clients:
            waiting = [clients.submit(rank, number) for number in range(ranks)]
            time.sleep(0.3)  # all of them wait
            self.push(job, batch)
            published = self._published(job, batch.step)
            return np.array([max(0.0, done.result() - published) * 1000 for done in waiting])

    def _published(self, job: str, step: int) -> float:
        connection = sqlite3.connect(self._store)
        query = "SELECT 1 FROM plans WHERE job = ? AND step = ?"
        while connection.execute(query, (job, step)).fetchone() is None:
            time.sleep(0.0005)
        connection.close()
        return time.perf_counter()

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        if not hasattr(self._mine, "connection"):
            self._mine.connection = http.client.HTTPConnection(self._host, timeout=120)
        connection: http.client.HTTPConnection = self._mine.connection
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
