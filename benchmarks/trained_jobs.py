"""Three jobs that train on a service which ends and is begun again, and other requests to it."""

from __future__ import annotations

import io
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.services import Served
from benchmarks.settings import Data
from seqplan import Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.runtime.sources.http_source import HttpSource

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
    file = io.BytesIO()
    np.save(file, lengths)
    key = json.loads(send(served.address, "POST", "/v1/lengths", file.getvalue()))["id"]
    document = make_proposal(load_shipped("llama-7b-a800-80gb"), workload, lengths, sync=None)
    response = send(served.address, "POST", "/v1/proposals/documents", document.to_json().encode())
    served.proposal = json.loads(response)["id"]
    for number in range(JOBS):
        body = {"id": f"job{number}", "proposal": served.proposal, "lengths": key, "seed": number}
        body |= {"steps": steps, "look_ahead": 3}
        send(served.address, "POST", "/v1/jobs", json.dumps(body).encode())
    return [
        Rank(served.url, f"job{number}", rank, steps, may_begin)
        for number in range(JOBS)
        for rank in range(WORLD)
    ]


class RepeatedRequests(ABC):
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


class Uploads(RepeatedRequests):
    """Uploads of 8 MB, each of other lengths; ``data_sets``: those with a response."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.data_sets: list[str] = []
        super().__init__(address)

    def send(self, number: int) -> None:
        file = io.BytesIO()
        np.save(file, np.arange(number, number + 1_000_000) % 4000 + 1)
        self.data_sets.append(
            json.loads(send(self.address, "POST", "/v1/lengths", file.getvalue()))["id"]
        )


def send(
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


def check_jobs(served: Supervised, uploads: Uploads, steps: int) -> None:
    """Raise unless every acknowledgement and every upload with a response is there."""
    for number in range(JOBS):
        job = json.loads(send(served.address, "GET", f"/v1/jobs/job{number}"))
        assert job["acknowledged"] == [steps - 1] * WORLD, job
        assert job["planned_steps"] == steps
    for key in uploads.data_sets:
        body = json.dumps({"proposal": served.proposal, "lengths": key, "steps": 1, "tokens": 100})
        send(served.address, "POST", "/v1/jobs", body.encode())  # reads the array, by its sha256


class Supervised:
    """A service that is begun again, on the same port, when it has ended.

    ``package``: a folder with the package of another release, None for this one.
    """

    proposal = ""

    def __init__(self, url: str, files: Path, package: Path | None = None) -> None:
        self._arguments: tuple[Any, ...] = ("serve", "--store", url, "--files", files)
        self._package = package

    def __enter__(self) -> Supervised:
        self._served = Served(*self._arguments, "--port", 0, package=self._package)
        self.address, self.url = (self._served.host, self._served.port), self._served.url
        return self

    def __exit__(self, *_: object) -> None:
        self._served.end()

    @property
    def process(self) -> int:
        """The service's process number."""
        return self._served.process.pid

    def kill_and_begin(self) -> None:
        self._served.kill()
        self.begin()

    def end(self, *, kill: bool = False) -> None:
        """End the service, which stays away."""
        if kill:
            self._served.kill()
        else:
            self._served.end()

    def begin(self, store: tuple[str, Path] | None = None) -> None:
        """Begin the service of this release again, with another store and folder if given."""
        if store is not None:
            self._arguments = ("serve", "--store", store[0], "--files", store[1])
        self._served = Served(*self._arguments, "--port", self.address[1])
