"""Stores that services of each earlier schema have written, under today's service.

``earlier/store-K.tar.xz`` is of a revision with schema K, whose proposals this version reads
(``facts.json`` names it), and 7 is 6 as it is upgraded. It has a job
that draws its batches and is being planned, one that is done, one whose batches were pushed, their
plans, acknowledgements and times, data sets, a profile, a proposal and a token.
"""

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
from service_process import serving_here
from stocked_service import change_rows

from seqplan import Profile, Proposal, from_json, to_json
from seqplan.api.store.errors import StoreError
from seqplan.api.store.migrations import EARLIEST, SCHEMA
from seqplan.api.store.store import Store

EARLIER = Path(__file__).parent / "earlier"
VERSIONS = range(EARLIEST, SCHEMA + 1)
PLANNED = {"drawn": 5, "done": 2, "pushed": 3}
"""Steps of each job that have a plan."""


def extract(version: int, folder: Path) -> dict[str, Any]:
    """Extract a store, and return the facts about it."""
    with tarfile.open(EARLIER / f"store-{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return json.loads((folder / "facts.json").read_text())


def read_rows(folder: Path, query: str, job: str = "") -> list[Any]:
    """Read rows as they are in the file, before it is upgraded; of a job if it is named."""
    with sqlite3.connect(folder / "seqplan.db") as database:
        if job:
            query += f" WHERE job = (SELECT key FROM jobs WHERE id = '{job}') ORDER BY step"
        rows = database.execute(query).fetchall()
    database.close()
    return rows


def test_every_schema_has_a_store() -> None:
    assert {path.name for path in EARLIER.iterdir()} == {f"store-{k}.tar.xz" for k in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_an_earlier_store_is_lost(version: int, tmp_path: Path) -> None:
    facts = extract(version, tmp_path)
    assert read_rows(tmp_path, "SELECT version FROM seqplan_schema") == [(version,)]
    query = "SELECT step, rank, measured_ms FROM measurements"
    measured = {job: set(read_rows(tmp_path, query, job)) for job in PLANNED}
    assert all(measured.values())
    ids = read_rows(tmp_path, "SELECT id FROM lengths ORDER BY id")
    for _ in range(2):  # upgraded, and opened again
        with serving_here(tmp_path / "seqplan.db") as served:
            assert served.send("GET", "/v1/jobs").status == 401
            served.headers["Authorization"] = f"Bearer {facts['token']}"
            for job, planned in PLANNED.items():
                row = served.ok("GET", f"/v1/jobs/{job}")
                assert row["planned_steps"] == planned
                assert row["acknowledged"] == [len(facts["digests"][job]) - 1] * 4
                times = served.ok("GET", f"/v1/jobs/{job}/measurements")["items"]
                assert {(t["step"], t["rank"], t["measured_ms"]) for t in times} == measured[job]
            assert [(each["id"],) for each in served.ok("GET", "/v1/lengths")["items"]] == ids
            assert served.ok("GET", f"/v1/lengths/{facts['lengths']}")["sequences"] == 400
            document = served.ok("GET", f"/v1/profiles/{facts['profile']}")
            assert document["name"] == "llama-small-cpu"
            document = served.ok("GET", f"/v1/proposals/{facts['proposal']}/document")
            assert document["max_len"] == 4096


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_go_on(version: int, tmp_path: Path) -> None:
    facts = extract(version, tmp_path)
    with serving_here(tmp_path / "seqplan.db") as served:
        served.headers["Authorization"] = f"Bearer {facts['token']}"
        for job, digests in facts["digests"].items():
            for step, digest in enumerate(digests):
                assert served.ok("GET", f"/v1/jobs/{job}/plans/{step}")["digest"] == digest
        for rank in range(4):
            served.ok("POST", "/v1/jobs/drawn/acks", {"step": 3, "rank": rank, "digest": None})
        assert served.ok("GET", "/v1/jobs/drawn/plans/5?wait=60")["step"] == 5
        assert served.ok("GET", "/v1/jobs/drawn/calibration")["steps"]["measured"] == 3
        assert served.ok("GET", "/v1/jobs/drawn/revisions")["items"][0]["kind"] == "begin"
        body = {"id": "new", "proposal": facts["proposal"], "lengths": facts["lengths"], "steps": 1}
        served.ok("POST", "/v1/jobs", body)
        assert served.ok("GET", "/v1/jobs/new/plans/0?wait=60")["step"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_are_read(version: int, tmp_path: Path) -> None:
    extract(version, tmp_path)
    plans = [text for (text,) in read_rows(tmp_path, "SELECT line FROM plans")]
    proposals = [text for (text,) in read_rows(tmp_path, "SELECT document FROM proposals")]
    profiles = [text for (text,) in read_rows(tmp_path, "SELECT document FROM profiles")]
    assert [to_json(from_json(text)) for text in plans] == plans
    for text in proposals:
        assert Proposal.from_json(text, "p").digest in plans[0]
    assert "llama-small-cpu" in {Profile.from_json(text, "p").name for text in profiles}


def test_a_store_before_the_earliest_schema_is_rejected_and_stays(tmp_path: Path) -> None:
    extract(EARLIEST, tmp_path)
    database = tmp_path / "seqplan.db"
    change_rows(database, f"UPDATE seqplan_schema SET version = {EARLIEST - 1}")
    rows = read_rows(tmp_path, "SELECT * FROM jobs")
    with pytest.raises(StoreError, match=r"has schema 3, this seqplan reads 4 to 7. Use another"):
        Store(str(database))
    assert read_rows(tmp_path, "SELECT * FROM jobs") == rows
