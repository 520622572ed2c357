"""Jobs that are stopped, abandoned, or have steps that expired, over HTTP."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from service_process import PATIENCE_S, Served, serving_here, wait_until
from stocked_service import WORLD, Stocked, change_rows, deliver, stock

from seqplan.api.service import upkeep
from seqplan.api.service.service import Limits
from seqplan.api.service.upkeep import Keeping
from seqplan.api.store.tables.expiry import Retention


@pytest.fixture(autouse=True)
def frequent_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_S", 0.2)


def _state(served: Served, job: str) -> str:
    return str(served.ok("GET", f"/v1/jobs/{job}")["state"])


def test_a_stopped_job_keeps_its_plans_and_can_go_on(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("stopped", 40, look_ahead=2)
    assert served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    plan = served.send("GET", f"/v1/jobs/{job}/plans/0").body
    for _ in range(2):
        assert served.ok("POST", f"/v1/jobs/{job}/stop") == {"id": job, "state": "stopped"}
    assert _state(served, job) == "stopped"
    assert served.send("GET", f"/v1/jobs/{job}/plans/0").body == plan
    problem = served.problem("GET", f"/v1/jobs/{job}/plans/2?wait=20", status=424)
    assert problem["type"].endswith("job-stopped")
    assert "restart" in problem["detail"]
    assert served.ok("POST", f"/v1/jobs/{job}/restart")["step"] == 2
    for rank in range(WORLD):
        served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 1, "rank": rank, "digest": None})
    assert served.send("GET", f"/v1/jobs/{job}/plans/2?wait=30").status == 200
    assert served.send("DELETE", f"/v1/jobs/{job}").status == 204
    served.problem("POST", f"/v1/jobs/{job}/stop", status=404)


def test_a_job_that_is_planned_cannot_be_stopped(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("short", 2)
    wait_until(lambda: _state(served, job) == "planned")
    problem = served.problem("POST", f"/v1/jobs/{job}/stop", status=409)
    assert problem["detail"] == "job short is planned: nothing to stop"


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[Served]:
    """A service that abandons jobs after a second, and plans one job at a time."""
    keeping, limits = Keeping(abandon_hours=1 / 3600), Limits(jobs=1)
    with serving_here(tmp_path / "s.db", keeping=keeping, limits=limits) as served:
        yield served


def test_an_abandoned_job_makes_room_and_comes_back(brief: Served) -> None:
    stocked = stock(brief)
    job = stocked.job("first", 10, look_ahead=2)
    assert brief.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    wait_until(lambda: _state(brief, job) == "abandoned")
    other = stocked.job("second", 10, look_ahead=2)  # the limit is one
    wait_until(lambda: _state(brief, other) == "abandoned")
    assert brief.send("GET", f"/v1/jobs/{job}/plans/1").status == 200
    assert _state(brief, job) == "abandoned"  # it has that plan
    assert brief.send("GET", f"/v1/jobs/{job}/plans/2/ranks/0").status == 204
    assert _state(brief, job) in ("planning", "abandoned")
    # Training goes on, whatever is abandoned between two steps.
    for rank in range(WORLD):
        brief.ok("POST", f"/v1/jobs/{job}/acks", {"step": 1, "rank": rank, "digest": None})
    assert brief.send("GET", f"/v1/jobs/{job}/plans/3?wait=30").status == 200


def test_a_rank_that_waits_keeps_its_job(brief: Served) -> None:
    proposal = stock(brief).proposal
    for name in ("steps", "tokens"):
        job = {"id": "pushed", "proposal": proposal, name: 5}
        detail = brief.problem("POST", "/v1/jobs", job)["detail"]
        assert detail == f"{name}: is for jobs with lengths. Give lengths, or leave it out"
    brief.ok("POST", "/v1/jobs", {"id": "pushed", "proposal": proposal})
    wait_until(lambda: _state(brief, "pushed") == "abandoned")
    batch = {"step": 0, "ids": [1], "lengths": [10]}
    brief.ok("POST", "/v1/jobs/pushed/batches", {"batches": [batch]})
    assert brief.send("GET", "/v1/jobs/pushed/plans/0?wait=30").status == 200


def test_a_job_that_comes_back_waits_for_room(brief: Served) -> None:
    stocked = stock(brief)
    stocked.job("first", 50, look_ahead=1)
    wait_until(lambda: _state(brief, "first") == "abandoned")
    stocked.job("second", 50, look_ahead=1)
    ends = time.monotonic() + PATIENCE_S
    while (reply := brief.send("GET", "/v1/jobs/first/plans/1")).status == 204:
        if _state(brief, "second") == "abandoned":  # before the first came back
            return
        brief.send("GET", "/v1/jobs/second/plans/0/ranks/0")  # a rank of it is there
        assert time.monotonic() < ends
    assert reply.status in (200, 503)
    if reply.status == 503:
        assert reply.json["type"].endswith("too-many-jobs")
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(("job_days", "abandon_hours"), [(30, 1000), (30, 24), (0, 1000)])
def test_a_job_without_requests_for_days_is_removed(
    tmp_path: Path, job_days: int, abandon_hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are still planned, or only now abandoned, stay; all of them if it is 0 days.

    Not in the first hour of a service, whose clock may be wrong when it starts.
    """
    store, names = tmp_path / "s.db", ("planned", "planning", "stopped", "requested")
    with serving_here(store) as served:
        stocked = stock(served)
        for name in names:
            stocked.job(name, 50 if name in ("planning", "stopped") else 2)
        served.ok("POST", "/v1/jobs/stopped/stop")
        for name in ("planned", "requested"):
            wait_until(lambda name=name: _state(served, name) == "planned")
    days = "UPDATE jobs SET asked_at = asked_at - 40 * 86400 WHERE id <> 'requested'"
    change_rows(store, days)
    keeping = Keeping(job_days=job_days, abandon_hours=abandon_hours)
    with serving_here(store, keeping=keeping) as served:
        if abandon_hours == 24:  # which is looked for before old jobs are
            wait_until(lambda: _state(served, "planning") == "abandoned")
        assert _jobs(served) == set(names)
    monkeypatch.setattr("seqplan.api.service.upkeep.REMOVE_AFTER_S", 0.0)
    with serving_here(store, keeping=keeping) as served:
        left = names if not job_days else ("planning", "requested")
        wait_until(lambda: _jobs(served) == set(left))
        expected = "abandoned" if abandon_hours == 24 else "planning"
        wait_until(lambda: _state(served, "planning") == expected)
        assert _jobs(served) == set(left)
        if job_days:
            assert served.problem("GET", "/v1/jobs/planned/plans/0", status=404)
            wait_until(lambda: not _rows_of_removed_jobs(store))


def _jobs(served: Served) -> set[str]:
    return {row["id"] for row in served.ok("GET", "/v1/jobs")["items"]}


def _rows_of_removed_jobs(store: Path) -> int:
    with closing(sqlite3.connect(store)) as database:
        query = "SELECT count(*) FROM {} WHERE job NOT IN (SELECT key FROM jobs)"
        tables = ("plans", "ranks", "measurements", "sampler_states", "removals")
        return sum(database.execute(query.format(name)).fetchone()[0] for name in tables)


def test_a_step_that_expired_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqplan.api.service.upkeep.EXPIRE_S", 0.0)
    keeping = Keeping(retention=Retention(steps=3))
    with serving_here(tmp_path / "s.db", keeping=keeping) as served:
        stocked = stock(served)
        job = stocked.job("job", 40)
        first = served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").body
        digests = deliver(served, served, 0, 12)
        wait_until(lambda: served.ok("GET", f"/v1/jobs/{job}")["kept_from"] == 9)
    with serving_here(tmp_path / "s.db", keeping=keeping) as served:
        problem = served.problem("GET", f"/v1/jobs/{job}/plans/1?wait=5", status=410)
        assert problem["type"].endswith("plan-expired")
        assert problem["kept_from"] == 9
        row = served.ok("GET", f"/v1/jobs/{job}")
        assert row["planned_steps"] == row["last_planned_step"] + 1 >= 14
        # A rank that repeats an old acknowledgement is not turned away.
        served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 1, "rank": 0, "digest": digests[1]})
        assert served.ok("GET", f"/v1/jobs/{job}/state?step=1")["step"] == 1
        goes_on = {"id": "again", "proposal": stocked.proposal}
        goes_on["continues"] = {"job": job, "step": 1}
        served.ok("POST", "/v1/jobs", goes_on)
        assert served.send("GET", "/v1/jobs/again/plans/1?wait=30").body == first


def test_expired_batches_cannot_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqplan.api.service.upkeep.EXPIRE_S", 0.0)
    with serving_here(tmp_path / "s.db", keeping=Keeping(retention=Retention(steps=2))) as served:
        proposal = stock(served).proposal
        served.ok("POST", "/v1/jobs", {"id": "job", "proposal": proposal})
        batches = [{"step": step, "ids": [step], "lengths": [100]} for step in range(6)]
        served.ok("POST", "/v1/jobs/job/batches", {"batches": batches})
        deliver(served, served, 0, 6)
        wait_until(lambda: served.ok("GET", "/v1/jobs/job")["kept_from"] == 4)
        body = {"proposal": proposal, "continues": {"job": "job", "step": 2}}
        problem = served.problem("POST", "/v1/jobs", body)
        assert "before step 4 have expired" in problem["detail"]
        more = {"batches": [{"step": 2, "ids": [2], "lengths": [100]}]}
        served.problem("POST", "/v1/jobs/job/batches", more, status=409)
