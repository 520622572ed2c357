"""A job of 20,000 steps and 64 ranks is deleted: what do another job's acknowledgements wait?"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from benchmarks.served import Served
from benchmarks.settings import Data, markdown
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job, job_key
from seqplan.api.store.tables.proposals import put_proposal

STEPS, RANKS = 20_000, 64
LINE_BYTES = 20_000
"""A plan of 64 GPUs."""

SETTLED_S = 300.0


def run(_: Sequence[Data]) -> None:
    """Print the worst acknowledgement with and without the deletion, and the store's size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        _fill(path)
        filled = path.stat().st_size
        with Served("serve", "--store", path, "--port", 0) as served:
            quiet = _Acknowledging(served.host, served.port)
            time.sleep(10)
            quiet.end()
            busy = _Acknowledging(served.host, served.port)
            began = time.perf_counter()
            answered = _delete(served.host, served.port)
            while _left(path):
                assert time.perf_counter() - began < SETTLED_S
                time.sleep(0.2)
            took = time.perf_counter() - began
            busy.end()
        left = path.stat().st_size
    rows = [
        [name, str(len(times)), *(f"{1000 * value:.1f}" for value in figures)]
        for name, times, figures in (
            ("before", quiet.times, _figures(quiet.times)),
            ("during the deletion", busy.times, _figures(busy.times)),
        )
    ]
    print(
        f"{STEPS} plans of {LINE_BYTES // 1000} kB and {STEPS * RANKS} times: DELETE answered in "
        f"{1000 * answered:.0f} ms, all rows gone after {took:.0f} s; the store went from "
        f"{filled >> 20} to {left >> 20} MiB\n"
    )
    print(markdown(["acknowledgements", "number", "median ms", "p99 ms", "worst ms"], rows), "\n")


def _figures(times: list[float]) -> list[float]:
    return [float(value) for value in (*np.quantile(times, (0.5, 0.99)), max(times))]


def _fill(path: Path) -> None:
    store = Store(str(path))
    with store.writing() as connection:
        put_proposal(connection, "p", {}, "{}")
        job = JobRow(id="old", proposal="p", seed=0, look_ahead=8, world_size=RANKS)
        add_job(connection, JobRow(**{**vars(job), "state": "planned"}))
        add_job(connection, JobRow(**{**vars(job), "id": "running", "state": "planned"}))
        keys = [job_key(connection, name) for name in ("old", "running")]
    store.close()
    database = sqlite3.connect(path)
    line = "x" * LINE_BYTES
    insert = "INSERT INTO plans (job, step, digest, line, planning_ms) VALUES (?, ?, ?, ?, 1.0)"
    plans = ((keys[0], step, "sha256:" + "0" * 64, line) for step in range(STEPS))
    database.executemany(insert, plans)
    database.executemany(insert, ((keys[1], step, "sha256:x", "{}") for step in range(100_000)))
    times = ((keys[0], step, rank, 1.0) for step in range(STEPS) for rank in range(RANKS))
    database.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?)", times)
    ranks = ((keys[0], rank, STEPS - 1, 0.0) for rank in range(RANKS))
    database.executemany("INSERT INTO ranks VALUES (?, ?, ?, ?)", ranks)
    database.commit()
    database.close()


def _delete(host: str, port: int) -> float:
    began = time.perf_counter()
    connection = HTTPConnection(host, port, timeout=60)
    connection.request("DELETE", "/v1/jobs/old")
    assert connection.getresponse().status == 204
    connection.close()
    return time.perf_counter() - began


def _left(path: Path) -> bool:
    """Whether there are rows of the deleted job, or pages to give back."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    left = database.execute("SELECT count(*) FROM removals").fetchone()[0]
    free = database.execute("PRAGMA freelist_count").fetchone()[0]
    database.close()
    return bool(left) or free > 1024


class _Acknowledging:
    """Acknowledges the running job's steps, one request at a time, in a thread."""

    def __init__(self, host: str, port: int) -> None:
        self.times: list[float] = []
        self._connection = HTTPConnection(host, port, timeout=60)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        step = 0
        while not self._ending.wait(0.005):
            body = json.dumps({"step": step, "rank": 0, "digest": None, "measured_ms": 1.0})
            began = time.perf_counter()
            self._connection.request(
                "POST", "/v1/jobs/running/acks", body, {"Content-Type": "application/json"}
            )
            answer = self._connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.times.append(time.perf_counter() - began)
            step = (step + 1) % 100_000

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        self._connection.close()
