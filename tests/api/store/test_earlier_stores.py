"""Stores that services of each earlier schema have written, under today's service.

``earlier/store-K.tar.xz`` is of the first revision with schema K, for 4 of the last, whose
proposals this version reads (``facts.json`` names it), and 7 is 6 as it is upgraded. It has a job
that draws its batches and is being planned, one that is done, one whose batches were pushed, their
plans, acknowledgements and times, data sets, a profile, a proposal and a token.
"""

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
from service_process import Served, serving_here
from stocked_service import stock

from seqplan import Profile, Proposal, from_json, to_json
from seqplan.api.store.migrations import MIGRATIONS
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.planner.proposal.document import ProposalError
from seqplan.plans.format.decode import PlanError

EARLIER = Path(__file__).parent / "earlier"
VERSIONS = range(1, len(MIGRATIONS) + 1)
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
            columns = [column for _, column, *_ in database.execute("PRAGMA table_info(jobs)")]
            key = "key" if "key" in columns else "id"
            query += f" WHERE job = (SELECT {key} FROM jobs WHERE id = '{job}') ORDER BY step"
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
    assert all(measured.values()) or version == 1
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


@pytest.mark.parametrize("version", [k for k in VERSIONS if k >= 4])
def test_jobs_of_schema_2_go_on(version: int, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("version", [k for k in VERSIONS if k < 4])
def test_jobs_of_schema_1_are_continued_by_a_new_proposal(version: int, tmp_path: Path) -> None:
    facts = extract(version, tmp_path)
    lines = read_rows(tmp_path, "SELECT line FROM plans", "drawn")
    before = [json.loads(line)["sequences"] for (line,) in lines]
    with serving_here(tmp_path / "seqplan.db") as served:
        served.headers["Authorization"] = f"Bearer {facts['token']}"
        _check_rejected(served, facts)
        new = {"id": "new", "proposal": stock(served).proposal}
        served.ok("POST", "/v1/jobs", {**new, "continues": {"job": "drawn", "step": 3}})
        for step in (3, 4):  # the same sequences, in the same steps
            plan = served.ok("GET", f"/v1/jobs/new/plans/{step}?wait=60")
            assert (plan["sequences"], plan["step"]) == (before[step], step)
        problem = served.problem(
            "POST", "/v1/jobs", {**new, "id": "n", "continues": {"job": "drawn", "step": 6}}, 409
        )
        assert "not planned up to step 6" in problem["detail"]


def _check_rejected(served: Served, facts: dict[str, Any]) -> None:
    """Documents of schema 1 are rejected by number, with a fix."""
    failed = served.problem("GET", "/v1/jobs/drawn/plans/5", status=424)
    assert failed["detail"].endswith("Propose again and start a new job")
    served.problem("GET", "/v1/jobs/drawn/plans/0", status=410)
    body = {"id": "n", "proposal": facts["proposal"], "lengths": facts["lengths"], "steps": 1}
    line = "proposal: schema: is 1, this version reads 2. Propose again"
    assert served.problem("POST", "/v1/jobs", body)["detail"] == line
    body = {"profile": facts["profile"], "lengths": facts["lengths"], "gpus": 4, "max_len": 1024}
    line = "profile: schema: is 1, this version reads 2. Make the profile again"
    assert served.problem("POST", "/v1/proposals", body)["detail"] == line


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_are_read_or_rejected_by_number(version: int, tmp_path: Path) -> None:
    extract(version, tmp_path)
    plans = [text for (text,) in read_rows(tmp_path, "SELECT line FROM plans")]
    proposals = [text for (text,) in read_rows(tmp_path, "SELECT document FROM proposals")]
    profiles = [text for (text,) in read_rows(tmp_path, "SELECT document FROM profiles")]
    if version >= 4:
        assert [to_json(from_json(text)) for text in plans] == plans
        for text in proposals:
            assert Proposal.from_json(text, "p").digest in plans[0]
        assert "llama-small-cpu" in {Profile.from_json(text, "p").name for text in profiles}
        return
    for read, texts, error in (
        (from_json, plans, PlanError),
        (lambda text: Proposal.from_json(text, "p"), proposals, ProposalError),
        (lambda text: Profile.from_json(text, "p"), profiles, ProfileError),
    ):
        assert texts
        for text in texts:
            with pytest.raises(error, match=r"schema: is 1, this version reads 2\. "):
                read(text)
