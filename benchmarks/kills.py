"""Kill -9 at 100 random moments: is every step delivered once to each rank, with the same bytes?"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.served import Served
from benchmarks.settings import Data, markdown
from seqplan.runtime.steps.http_source import HttpSource

KILLS, STEPS, WORLD, SEED = 100, 200, 4, 0
PATIENCE_S = 120.0

PLANNING, FORKING = "planning process", "server that forks them"

JOB = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
context = 4096
tokens = 8000
look_ahead = 3
"""


def run(data: Sequence[Data]) -> None:
    """Print what was killed and whether the job noticed; raises where it did.

    Each kill comes while another step, drawn at random, is underway. Half of them hit the sidecar
    itself, which is begun again as a supervisor would, half one of its planning processes or the
    server that forks them. The job's ranks go on asking all the while.
    """
    with tempfile.TemporaryDirectory() as folder:
        with _Supervised(Path(folder) / "undisturbed", data[-1], STEPS) as served:
            expected = [_Rank(served.url, rank, lambda step: None) for rank in range(WORLD)]
            _finish(expected)
        with _Supervised(Path(folder) / "killed", data[-1], STEPS) as served:
            random = np.random.default_rng(SEED)
            steps = np.sort(random.choice(STEPS, KILLS, replace=False)).tolist()
            steps_done = 0

            def may_begin(step: int) -> None:
                # A step at which a kill is due waits for it at its end, never before it.
                while steps_done < KILLS and step > steps[steps_done]:
                    time.sleep(0.002)

            ranks = [_Rank(served.url, rank, may_begin) for rank in range(WORLD)]
            killed = {"sidecar": 0, PLANNING: 0, FORKING: 0}
            began = time.perf_counter()
            for step in steps:
                while max(len(rank.steps) for rank in ranks) < step:
                    _raise_failures(ranks)
                    time.sleep(0.002)
                time.sleep(float(random.uniform(0, 0.3)))
                processes = served.planning_processes()
                if processes and random.random() < 0.5:
                    process = int(random.choice(sorted(processes)))
                    _kill(process)
                    killed[processes[process]] += 1
                else:
                    served.kill_and_begin()
                    killed["sidecar"] += 1
                steps_done += 1
            _finish(ranks)
            took = time.perf_counter() - began
    for rank, undisturbed in zip(ranks, expected, strict=True):
        assert rank.steps == list(range(STEPS)), rank.steps
        assert rank.digests == undisturbed.digests
    assert all(killed.values()), killed
    rows = [[process, str(count)] for process, count in killed.items()]
    print(f"{STEPS} steps, {WORLD} ranks, {took:.0f} s: each delivered once, the same digests\n")
    print(markdown(["killed", "times"], rows), "\n")


class _Rank:
    """A rank that fetches and acknowledges step after step, in a thread."""

    def __init__(self, url: str, rank: int, may_begin: Callable[[int], None]) -> None:
        self.steps: list[int] = []
        self.digests: list[str | None] = []
        self.failure: Exception | None = None
        self._rank = rank
        self._may_begin = may_begin
        self._source = HttpSource(url, "job", ack_timeout_s=PATIENCE_S)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for step in range(STEPS):
                self._may_begin(step)
                view = self._source.view(step, self._rank, PATIENCE_S)
                self.steps.append(view.step)
                self.digests.append(view.digest)
                self._source.acknowledge(step, self._rank, view.digest)
        except Exception as error:
            self.failure = error


def _finish(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.thread.join()
    _raise_failures(ranks)


def _raise_failures(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if rank.failure is not None:
            raise rank.failure


class _Supervised:
    """A sidecar that is begun again, on the same port, when it has been killed."""

    def __init__(self, folder: Path, data: Data, steps: int) -> None:
        folder.mkdir()
        np.save(folder / "lengths.npy", data.lengths[:20_000])
        self._job = folder / "job.toml"
        self._text = f"{JOB}steps = {steps}\n"
        self._job.write_text(f"{self._text}port = 0\n")

    def __enter__(self) -> _Supervised:
        self._served = Served("sidecar", "--job", self._job)
        self._job.write_text(f"{self._text}port = {self._served.port}\n")
        self.url = self._served.url
        return self

    def __exit__(self, *_: object) -> None:
        self._served.end()

    def kill_and_begin(self) -> None:
        self._served.kill()
        self._served = Served("sidecar", "--job", self._job)

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
        sidecar = self._served.process.pid
        servers = {process for process, parent in parents.items() if parent == sidecar}
        planning = {process for process, parent in parents.items() if parent in servers}
        return dict.fromkeys(servers, FORKING) | dict.fromkeys(planning, PLANNING)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
