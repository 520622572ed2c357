"""Data of a service before the tests: lengths and a proposal."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from service_process import Served

from seqplan import Proposal, Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.runtime.sources.http_source import HttpSource

DATA = Path(__file__).parents[2] / "examples" / "data" / "code.npy"
MAX_LEN = 4096
WORLD = 4


@dataclass(frozen=True)
class Stocked:
    """A running service and the ids of what it was given."""

    served: Served
    lengths: str
    proposal: str

    def job(self, name: str, steps: int, look_ahead: int = 3) -> str:
        """Begin a job that draws its batches."""
        body = {"id": name, "proposal": self.proposal, "lengths": self.lengths}
        self.served.ok("POST", "/v1/jobs", {**body, "steps": steps, "look_ahead": look_ahead})
        return name

    def revise(self, job: str) -> None:
        """Plan the further steps of a job by a proposal of another seed."""
        document = Proposal.from_json(_document().decode(), "proposal")
        body = replace(document, seed=1).to_json().encode()
        proposal = self.served.ok("POST", "/v1/proposals/documents", body)["id"]
        self.served.ok("PUT", f"/v1/jobs/{job}/proposal", {"proposal": proposal})


@cache
def _document() -> bytes:
    """A proposal for the lengths, made once for all services of a test run."""
    workload = Workload(gpus=WORLD, max_len=MAX_LEN, tokens=8000)
    profile = load_shipped("llama-7b-a800-80gb").restrict(measured=True)
    return make_proposal(profile, workload, np.load(DATA), sync=None).to_json().encode()


def stock(served: Served) -> Stocked:
    """Upload lengths and a proposal."""
    reply = served.send("POST", "/v1/lengths", DATA.read_bytes())
    assert reply.status == 201, reply
    proposal = served.ok("POST", "/v1/proposals/documents", _document())["id"]
    return Stocked(served, reply.json["id"], proposal)


def change_rows(store: Path, *statements: str) -> None:
    """Change rows of a SQLite store from outside."""
    with closing(sqlite3.connect(store)) as database, database:
        for statement in statements:
            database.execute(statement)


def deliver(fetched_from: Served, acknowledged: Served, first: int, last: int) -> list[str]:
    """Fetch steps of ``job`` from one service, acknowledge to another; return the digests."""
    source, acks = HttpSource(fetched_from.url, "job"), HttpSource(acknowledged.url, "job")
    digests = []
    for step in range(first, last):
        views = [source.view(step, rank, 60) for rank in range(WORLD)]
        assert len({view.digest for view in views}) == 1
        for view in views:
            acks.acknowledge(step, view.rank, view.digest)
        digests.append(str(views[0].digest))
    source.close()
    acks.close()
    return digests
