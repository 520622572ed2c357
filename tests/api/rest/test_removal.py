"""Failed jobs planned again; jobs, proposals and lengths removed while others go on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from service_process import PATIENCE_S, Reply, Served, serving, serving_here, wait_until
from sqlalchemy import create_engine
from stocked_service import DATA, WORLD, Stocked, stock

from seqplan.api.store import schema
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sources.http_source import HttpSource


def test_a_failed_job_is_planned_again(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        job = stocked.job("lost", 6, look_ahead=2)
        whole = stocked.job("whole", 6, look_ahead=6)
        before = served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").body
        expected = [
            served.send("GET", f"/v1/jobs/{whole}/plans/{k}?wait=30").body for k in range(6)
        ]
    damaged = tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy"
    sound = damaged.read_bytes()
    damaged.write_bytes(b"\x93NUMPY broken")
    with serving_here(tmp_path / "s.db") as served:
        assert served.problem("GET", f"/v1/jobs/{job}/plans/2?wait=30", status=424)
        # Nothing has changed: it fails again, at the same step.
        assert served.ok("POST", f"/v1/jobs/{job}/restart") == {
            "id": job,
            "state": "planning",
            "step": 2,
        }
        problem = served.problem("GET", f"/v1/jobs/{job}/plans/2?wait=30", status=424)
        assert problem["failed_step"] == 2
        damaged.write_bytes(sound)
        key = {"Idempotency-Key": "again"}
        first = served.send("POST", f"/v1/jobs/{job}/restart", None, key)
        assert (first.status, first.json["step"]) == (202, 2)
        for step in range(6):
            for rank in range(WORLD):
                source = HttpSource(served.url, job)
                source.acknowledge(step, rank, source.view(step, rank, 30).digest)
                source.close()
        plans = [served.send("GET", f"/v1/jobs/{job}/plans/{k}").body for k in range(6)]
        assert plans == expected
        assert plans[1] == before
        row = served.ok("GET", f"/v1/jobs/{job}")
        assert (row["state"], row["failed_step"], row["error"]) == ("planned", None, None)
        # The same answer to the same question, which is not done twice.
        assert served.send("POST", f"/v1/jobs/{job}/restart", None, key).body == first.body
        assert served.ok("GET", f"/v1/jobs/{job}")["state"] == "planned"
        problem = served.problem("POST", f"/v1/jobs/{job}/restart", status=409)
        assert problem["detail"] == f"job {job} is planned, it has not failed"
        assert served.problem("POST", "/v1/jobs/nobody/restart", status=404)


def test_a_removed_job_is_gone(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("brief", 50, look_ahead=3)
    assert served.send("GET", f"/v1/jobs/{job}/plans/2?wait=30").status == 200
    waiting: list[Reply] = []
    path = f"/v1/jobs/{job}/plans/7/ranks/0?wait=50"
    thread = threading.Thread(target=lambda: waiting.append(served.send("GET", path)))
    thread.start()
    assert served.send("GET", f"/v1/jobs/{job}/plans/7?wait=0.5").status == 204
    reply = served.send("DELETE", f"/v1/jobs/{job}")
    assert (reply.status, reply.body) == (204, b"")
    thread.join(PATIENCE_S)
    assert [answer.status for answer in waiting] == [404]  # long before its time was up
    source = HttpSource(served.url, job)
    with pytest.raises(PlanError, match="there is no job brief"):
        source.view(0, 0, 20)
    with pytest.raises(PlanError, match="there is no job brief"):
        source.acknowledge(0, 0, None)
    source.close()
    for below in ("", "/plans/0", "/plans/0/ranks/1", "/progress", "/steps", "/state?step=0"):
        assert served.problem("GET", f"/v1/jobs/{job}{below}", status=404)
    assert served.problem("DELETE", f"/v1/jobs/{job}", status=404)
    assert job not in {row["id"] for row in served.ok("GET", "/v1/jobs?limit=1000")["items"]}


def test_another_job_may_have_the_name(stocked: Stocked) -> None:
    served = stocked.served
    request = {"id": "name", "proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 2}
    key = {"Idempotency-Key": "name"}
    for _ in range(2):  # a key of the removed job does not answer for the new one
        assert served.send("POST", "/v1/jobs", request, key).status == 201
        assert served.send("GET", "/v1/jobs/name/plans/1?wait=30").status == 200
        served.ok("POST", "/v1/jobs/name/acks", {"step": 0, "rank": 1, "digest": None})
        assert served.send("DELETE", "/v1/jobs/name").status == 204
    served.ok("POST", "/v1/jobs", {"id": "name", "proposal": stocked.proposal})
    batch = {"step": 0, "ids": [77], "lengths": [300]}
    served.ok("POST", "/v1/jobs/name/batches", {"batches": [batch]})
    assert served.send("GET", "/v1/jobs/name/plans/0?wait=30").json["sequences"]["ids"] == [77]
    assert served.ok("GET", "/v1/jobs/name")["acknowledged"] == [-1] * WORLD


def test_proposals_and_lengths_stay_while_they_are_used(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        stocked.job("user", 1)
        for collection, key in (("proposals", stocked.proposal), ("lengths", stocked.lengths)):
            problem = served.problem("DELETE", f"/v1/{collection}/{key}", status=409)
            assert problem["type"].endswith("in-use")
            assert problem["detail"].endswith(f"{key}: job user uses it; remove the job first")
        request = {"profile": "llama-7b-a800-80gb", "lengths": stocked.lengths, "gpus": 64}
        making = served.ok("POST", "/v1/proposals", {**request, "max_len": 4096})["id"]
        assert served.send("DELETE", "/v1/jobs/user").status == 204
        problem = served.problem("DELETE", f"/v1/lengths/{stocked.lengths}", status=409)
        assert problem["detail"].endswith(f"proposal {making} is being made from them")
        for key in (making, stocked.proposal):
            assert served.send("DELETE", f"/v1/proposals/{key}").status == 204
            assert served.problem("DELETE", f"/v1/proposals/{key}", status=404)
            assert served.problem("GET", f"/v1/proposals/{key}", status=404)
        assert served.send("DELETE", f"/v1/lengths/{stocked.lengths}").status == 204
        assert served.problem("DELETE", f"/v1/lengths/{stocked.lengths}", status=404)
        assert list((tmp_path / "s.db.files" / "lengths").iterdir()) == []
        # The same data again, and the maker goes on with the next proposal.
        again = served.ok("POST", "/v1/lengths", DATA.read_bytes())["id"]
        assert again == stocked.lengths
        assert np.array_equal(
            np.load(tmp_path / "s.db.files" / "lengths" / f"{again}.npy"), np.load(DATA)
        )
        served.proposal({**request, "gpus": 4, "max_len": 4096, "tokens": 8000})


def _published(served: Served) -> int:
    text = served.send("GET", "/metrics").body.decode()
    (line,) = [row for row in text.splitlines() if row.startswith("seqplan_publications_total ")]
    return int(float(line.split()[1]))


def test_services_that_share_a_store_forget_together(postgresql_url: str, tmp_path: Path) -> None:
    shared = ("--store", postgresql_url, "--files", tmp_path / "files", "--port", 0)
    with serving(*shared) as first, serving(*shared) as other, ThreadPoolExecutor(2) as threads:
        request = {"id": "job", "proposal": stock(first).proposal}
        for step in range(4):
            first.ok("POST", "/v1/jobs", request)
            batch = {"step": step, "ids": [step], "lengths": [100]}
            other.ok("POST", "/v1/jobs/job/batches", {"batches": [batch]})
            for served in (first, other):
                plan = served.send("GET", f"/v1/jobs/job/plans/{step}?wait=30").json
                assert plan["sequences"]["ids"] == [step]
            path = "/v1/jobs/job/plans/9/ranks/0?wait=50"
            waiting = [threads.submit(served.send, "GET", path) for served in (first, other)]
            # Whichever of the two plans it, either removes it.
            assert (first, other)[step % 2].send("DELETE", "/v1/jobs/job").status == 204
            assert [reply.result(PATIENCE_S).status for reply in waiting] == [404, 404]
            for served in (first, other):
                assert served.problem("GET", f"/v1/jobs/job/plans/{step}", status=404)
        assert _published(first) + _published(other) == 4


def _ask_until_served(served: Served, path: str) -> Reply:
    """As a client does: a request that is reading the store when it goes is 503."""
    ends = time.monotonic() + PATIENCE_S
    while (reply := served.send("GET", path)).status == 503:
        assert reply.headers["retry-after"] == "1"
        assert time.monotonic() < ends
        time.sleep(0.1)
    return reply


def test_a_removal_without_notice_is_found(postgresql_url: str, tmp_path: Path) -> None:
    """A service that has lost its database for a while finds removed jobs."""
    engine = create_engine(postgresql_url)
    with (
        serving_here(postgresql_url, tmp_path / "files") as served,
        ThreadPoolExecutor(1) as threads,
    ):
        stocked = stock(served)
        for job in ("planned", "planning"):
            stocked.job(job, 2 if job == "planned" else 50, look_ahead=2)
            assert served.send("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
        waiting = threads.submit(_ask_until_served, served, "/v1/jobs/planning/plans/7?wait=50")
        with engine.begin() as connection:
            for table in (schema.jobs, schema.plans):
                connection.execute(table.delete())
            others = "FROM pg_stat_activity WHERE datname = current_database()"
            mine = "AND pid <> pg_backend_pid()"
            connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {others} {mine}")
        assert waiting.result(PATIENCE_S).status == 404
        for job in ("planned", "planning"):
            path = f"/v1/jobs/{job}/plans/0"
            wait_until(lambda path=path: served.send("GET", path).status == 404)
        served.proposal(
            {"profile": "llama-7b-a800-80gb", "lengths": stocked.lengths, "gpus": WORLD}
            | {"max_len": 4096, "tokens": 9000}
        )
    engine.dispose()


def test_a_sidecar_whose_job_was_removed(tmp_path: Path) -> None:
    """Begun again, it makes its proposal by the file as it is then."""
    np.save(tmp_path / "lengths.npy", np.load(DATA)[:1000])
    file, token_file = tmp_path / "job.toml", tmp_path / "token"
    for gpus in (2, 3):
        file.write_text(
            'profile = "llama-7b-a800-80gb"\nlengths = "lengths.npy"\nmax_len = 2048\n'
            f'tokens = 8000\nsteps = 2\nport = 0\ngpus = {gpus}\ntoken_file = "token"\n'
        )
        with serving("--job", file, command="sidecar") as served:
            served.headers["Authorization"] = f"Bearer {token_file.read_text().strip()}"
            assert served.send("GET", "/v1/jobs/job/plans/1?wait=30").json["world_size"] == gpus
            assert served.send("DELETE", "/v1/jobs/job").status == 204
