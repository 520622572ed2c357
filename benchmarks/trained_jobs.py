"""Three jobs that train on a service which ends and is begun again, and other requests to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks.services import Served
from benchmarks.settings import Data
from seqplan import Client, Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.runtime.sources.http_source import HttpSource

Result = TypeVar("Result")

JOBS, WORLD = 3, 4
PATIENCE_S = 120.0


class Rank:
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


def train_jobs(
    served: Supervised, data: Data, steps: int, may_begin: Callable[[int], None]
) -> list[Rank]:
    """Begin the jobs, and their ranks."""
    lengths, workload = data.lengths[:20_000], Workload(WORLD, 4096, 8000)
    profile = load_shipped("llama-7b-a800-80gb")
    proposal = make_proposal(profile, workload, lengths, sync=None)
    names = [f"job{number}" for number in range(JOBS)]
    with served.connect() as client:
        served.proposal = client.upload_proposal(proposal.to_json()).id
        options: Any = {"lengths": client.upload_lengths(lengths).id, "look_ahead": 3}
        options |= {"proposal": served.proposal, "steps": steps}
        for seed, name in enumerate(names):
            client.create_job(id=name, seed=seed, **options)
    return [
        Rank(served.url, name, rank, steps, may_begin) for name in names for rank in range(WORLD)
    ]


class Repeated(Generic[Result]):
    """Requests that a thread repeats until it is stopped; ``results``: of those that ended."""

    def __init__(self, send: Callable[[int], Result], pause_s: float = 0.3) -> None:
        self.results: list[Result] = []
        self._send, self._pause_s = send, pause_s
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._pause_s):
                self.results.append(self._send(len(self.results)))
        except Exception as error:
            self._failure = error

    def end(self) -> None:
        """Stop after the request in progress; raise the failure of one."""
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def upload(served: Supervised, number: int) -> str:
    """Upload 8 MB of lengths, others for each number; return their id."""
    with served.connect() as client:
        return client.upload_lengths(np.arange(number, number + 1_000_000) % 4000 + 1).id


def finish(ranks: Sequence[Rank]) -> None:
    """Wait for the ends of all ranks; raise their failures."""
    for rank in ranks:
        rank.thread.join()
    raise_failures(ranks)


def raise_failures(ranks: Sequence[Rank]) -> None:
    """Raise the failure of a rank that has one."""
    for rank in ranks:
        if rank.failure is not None:
            raise rank.failure


def count_steps(ranks: Sequence[Rank]) -> int:
    """Count the steps that all ranks have done together."""
    return sum(len(rank.steps) for rank in ranks)


def check_jobs(served: Supervised, uploaded: Sequence[str], steps: int) -> None:
    """Raise unless every acknowledgement and every upload with a response is there."""
    with served.connect() as client:
        for number in range(JOBS):
            job = client.get_job(f"job{number}")
            assert job.acknowledged == [steps - 1] * WORLD, job
            assert job.planned_steps == steps
        for lengths in uploaded:  # a job reads the array, by its sha256
            client.create_job(proposal=served.proposal, lengths=lengths, steps=1, tokens=100)


class Supervised(Served):
    """A service that is begun again, on the same port, when it has ended."""

    proposal = ""

    def __init__(self, url: str, files: Path, package: Path | None = None) -> None:
        self._store = ("serve", "--store", url, "--files", files)
        super().__init__(*self._store, "--port", 0, package=package)

    def connect(self) -> Client:
        """Return a client that retries requests during an outage."""
        return Client(self.url, retry_s=PATIENCE_S)

    def begin(self, store: tuple[str, Path] | None = None) -> None:
        """Begin the service of this release again, with another store and folder if given."""
        if store is not None:
            self._store = ("serve", "--store", store[0], "--files", store[1])
        self.start(*self._store, "--port", self.port)
