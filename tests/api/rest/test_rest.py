"""The REST interface of a real service process."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from service_process import PATIENCE_S, Reply, serving
from stocked_service import WORLD, Stocked, stock

from seqplan.plans.format.codec import from_json
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.errors import PlanError
from seqplan.runtime.steps.http_source import HttpSource


def test_a_plan_and_its_views(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("views", 2)
    reply = served.ask("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    plan = from_json(reply.body.decode())
    digest = reply.headers["etag"].strip('"')
    assert plan.world_size == WORLD
    source = HttpSource(served.url, job)
    for rank in range(WORLD):
        assert source.view(0, rank, 30) == rank_view(plan, rank, digest=digest)
    source.close()
    tag = {"If-None-Match": reply.headers["etag"]}
    assert served.ask("GET", f"/v1/jobs/{job}/plans/0", headers=tag).status == 304
    figures = served.ok("GET", f"/v1/jobs/{job}/plans/0/simulate")
    assert figures["lower_bound_ms"] <= figures["predicted_ms"]
    assert b"step 0" in served.ask("GET", f"/v1/jobs/{job}/plans/0/explain").body


def test_planning_keeps_ahead_of_the_slowest_rank_only(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("ahead", 9, look_ahead=2)
    assert served.ask("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    assert served.ask("GET", f"/v1/jobs/{job}/plans/2?wait=0.5").status == 204
    for rank in range(1, WORLD):
        served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 0, "rank": rank, "digest": None})
    assert served.ask("GET", f"/v1/jobs/{job}/plans/2?wait=0.5").status == 204
    answers: list[Reply] = []
    path = f"/v1/jobs/{job}/plans/2/ranks/0?wait=30"
    waiting = threading.Thread(target=lambda: answers.append(served.ask("GET", path)))
    waiting.start()
    served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 0, "rank": 0, "digest": None})
    waiting.join(PATIENCE_S)
    assert [answer.status for answer in answers] == [200]
    assert served.ok("GET", f"/v1/jobs/{job}")["last_planned_step"] == 2


def test_pushed_batches(stocked: Stocked) -> None:
    served = stocked.served
    made = served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})
    job = made["id"]
    assert served.ask("GET", f"/v1/jobs/{job}/plans/5?wait=0.2").status == 204
    batches = f"/v1/jobs/{job}/batches"
    first = {"step": 5, "ids": [3, 4], "lengths": [100, 4000]}
    served.ok("POST", batches, {"batches": [first]})
    plan = from_json(served.ask("GET", f"/v1/jobs/{job}/plans/5?wait=30").body.decode())
    assert (plan.ids, plan.lengths) == ((3, 4), (100, 4000))
    assert served.problem("POST", batches, {"batches": [first]}, 409)["last_step"] == 5
    long = {"step": 6, "ids": [1, 2], "lengths": [5, 5000]}
    told = served.problem("POST", batches, {"batches": [long]})
    assert told["detail"] == "body.batches[0].lengths[1]: 5000 is above the proposal's 4096"
    assert served.problem("GET", f"/v1/jobs/{job}/plans/4", status=404)
    served.ok("POST", batches, {"batches": [{**first, "step": 8}], "end": True})
    assert served.ask("GET", f"/v1/jobs/{job}/plans/8?wait=30").status == 200
    told = served.problem("GET", f"/v1/jobs/{job}/plans/9", status=410)
    assert told["type"].endswith("end-of-plans")
    assert served.problem("POST", batches, {"batches": []}, 409)


def test_a_step_that_cannot_be_planned_is_told_to_those_who_wait(tmp_path: Path) -> None:
    """A job whose lengths are damaged on the disk: its ranks hear of it, none waits for ever."""
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        stocked = stock(served)
        job = stocked.job("lost", 6, look_ahead=2)
        before = served.ask("GET", f"/v1/jobs/{job}/plans/1?wait=30").body
    damaged = tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy"
    damaged.write_bytes(b"\x93NUMPY broken")
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        source = HttpSource(served.url, job)
        with pytest.raises(PlanError, match="step 2 of job lost cannot be planned: ValueError"):
            source.view(2, 0, 60)
        source.close()
        told = served.problem("GET", f"/v1/jobs/{job}/plans/4", status=424)
        assert told["failed_step"] == 2
        assert served.ask("GET", f"/v1/jobs/{job}/plans/1").body == before
        assert served.ok("GET", f"/v1/jobs/{job}")["state"] == "failed"


def test_idempotency_keys(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("once", 1)
    served.ask("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    path, body = f"/v1/jobs/{job}/measurements", {"step": 0, "rank": 1, "measured_ms": 12.5}
    key = {"Idempotency-Key": "k"}
    first = served.ask("POST", path, body, key)
    assert (first.status, served.ask("POST", path, body, key).body) == (200, first.body)
    assert (
        served.ask("POST", path, {**body, "measured_ms": 9.0}, key)
        .json["type"]
        .endswith("key-reused")
    )
    new = {"proposal": stocked.proposal}
    made = served.ask("POST", "/v1/jobs", new, {"Idempotency-Key": "new"})
    again = served.ask("POST", "/v1/jobs", new, {"Idempotency-Key": "new"})
    assert made.json == again.json
    assert served.ok("POST", "/v1/jobs", new)["id"] != made.json["id"]


def test_pages(stocked: Stocked) -> None:
    served = stocked.served
    names = {stocked.job(f"page-{k}", 1) for k in range(3)}
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        found = served.ok("GET", f"/v1/jobs?limit=2&cursor={cursor}")
        assert len(found["items"]) <= 2
        seen += [item["id"] for item in found["items"]]
        cursor = found["next"]
    assert seen == sorted(set(seen))
    assert names <= set(seen)
    assert stocked.lengths in {item["id"] for item in served.ok("GET", "/v1/lengths")["items"]}
    assert "llama-7b-a800-80gb" in served.ok("GET", "/v1/profiles")["shipped"]


def test_lengths_and_profiles(stocked: Stocked) -> None:
    served = stocked.served
    found = served.ok("GET", f"/v1/lengths/{stocked.lengths}")
    assert sum(bucket[2] for bucket in found["histogram"]) == found["sequences"] == 32514
    document = served.ok("GET", "/v1/profiles/gpt-7b-a100-40gb")
    kept = served.ok("POST", "/v1/profiles", {**document, "name": "mine"})
    assert served.ok("GET", f"/v1/profiles/{kept['id']}")["name"] == "mine"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("POST", "/v1/lengths", b"abc", 422, "body: is not a .npy file; write one with numpy.save"),
        ("POST", "/v1/lengths?format=txt", b"5\n0\n", 422, "length 0 is not positive"),
        ("POST", "/v1/lengths?format=csv", b"5", 422, "query.format: 'csv' is none of"),
        ("POST", "/v1/profiles", {"name": 1}, 422, "body: "),
        ("POST", "/v1/profiles", b"\xff", 422, "body: not UTF-8"),
        ("POST", "/v1/jobs", {"proposal": "x"}, 422, "there is no proposal x"),
        ("POST", "/v1/jobs", {"id": "a/b", "proposal": "x"}, 422, "body.id: "),
        ("POST", "/v1/jobs", {"proposal": "x", "look_ahead": "2"}, 422, "body.look_ahead: "),
        ("POST", "/v1/jobs", b'{"proposal":', 422, "JSON decode error"),
        ("GET", "/v1/jobs/none", None, 404, "there is no job none"),
        ("GET", "/v1/jobs/none/plans/0?wait=30", None, 404, "there is no job none"),
        ("GET", "/v1/jobs/none/plans/x", None, 422, "path.step: "),
        ("GET", "/v1/nothing", None, 404, "/v1/nothing"),
        ("DELETE", "/v1/jobs", None, 405, "DELETE /v1/jobs"),
        ("POST", "/v1/jobs/none/acks", {"step": 0, "rank": 0}, 422, "body.digest: "),
    ],
)
def test_bad_requests_are_problems(
    stocked: Stocked, method: str, path: str, body: Any, status: int, detail: str
) -> None:
    assert detail in stocked.served.problem(method, path, body, status)["detail"]


def test_all_ranks_acknowledge_at_once(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("at-once", steps=2)
    assert served.ask("GET", f"/v1/jobs/{job}/plans/1?wait=30").status == 200
    path = f"/v1/jobs/{job}/acks/many"
    said = {"step": 0, "ranks": [0, 1, 3], "digest": None, "measured_ms": [5.0, None, 7.5]}
    for _ in range(2):
        assert served.ok("POST", path, said) == {"step": 0, "ranks": [0, 1, 3]}
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [0, 0, -1, 0]
    measured = served.ok("GET", f"/v1/jobs/{job}/measurements")["items"]
    assert [(item["rank"], item["measured_ms"]) for item in measured] == [(0, 5.0), (3, 7.5)]
    # All of them or none.
    found = served.problem("POST", path, {"step": 0, "ranks": [2, WORLD], "digest": None})
    assert found["detail"] == f"rank: {WORLD} is not below {WORLD}"
    found = served.problem("POST", path, {**said, "measured_ms": [1.0]})
    assert found["detail"] == "body.measured_ms: has 1 figures for 3 ranks"
    served.problem("POST", path, {"step": 0, "ranks": [], "digest": None})
    served.problem("POST", path, {"step": 5, "ranks": [2], "digest": None}, 409)
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [0, 0, -1, 0]


def test_bad_acknowledgements(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("acks", 9, look_ahead=1)
    served.ask("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    path, ack = f"/v1/jobs/{job}/acks", {"step": 0, "rank": 0, "digest": None}
    assert served.problem("POST", path, {**ack, "step": 5}, 409)["last_step"] == 0
    assert served.problem("POST", path, {**ack, "rank": WORLD})
    other = {**ack, "digest": "sha256:" + "0" * 64}
    assert served.problem("POST", path, other, 409)["type"].endswith("other-plan")
    assert served.ok("GET", f"/v1/jobs/{job}")["acknowledged"] == [-1] * WORLD


def test_a_body_beyond_the_limit(stocked: Stocked) -> None:
    too_much = {"Content-Length": str(1 << 40)}
    reply = stocked.served.ask("POST", "/v1/jobs", None, too_much)
    assert (reply.status, reply.json["type"]) == (413, "urn:seqplan:problem:too-large")


def test_a_body_that_grows_beyond_the_limit(stocked: Stocked) -> None:
    """Sent in chunks, so that nothing says beforehand how large it is."""
    host = stocked.served.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.putrequest("POST", "/v1/jobs")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with contextlib.suppress(ConnectionError):
        for _ in range(65):
            connection.send(chunk)
    reply = connection.getresponse()
    assert (reply.status, json.loads(reply.read())["type"][-9:]) == (413, "too-large")
    connection.close()


def test_probes_metrics_and_docs(stocked: Stocked) -> None:
    served = stocked.served
    assert served.ask("GET", "/healthz").body == b"ok\n"
    assert served.ask("GET", "/readyz").body == b"ready\n"
    metrics = served.ask("GET", "/metrics").body.decode()
    assert "# TYPE seqplan_jobs gauge" in metrics
    assert 'seqplan_requests_total{status="200"}' in metrics
    assert 'seqplan_request_seconds_bucket{kind="other",le="+Inf"}' in metrics
    assert "# TYPE seqplan_drift_error gauge" in metrics
    page = served.ask("GET", "/docs").body.decode()
    assert "GET /v1/jobs/{job}/plans/{step}" in page
    assert "<script" not in page
    assert "/v1/jobs/{job}/acks" in served.ok("GET", "/openapi.json")["paths"]


def test_a_service_ends_while_ranks_wait(tmp_path: Path, stocked: Stocked) -> None:
    document = stocked.served.ok("GET", f"/v1/proposals/{stocked.proposal}")["document"]
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        proposal = served.ok("POST", "/v1/proposals/documents", document)["id"]
        job = served.ok("POST", "/v1/jobs", {"proposal": proposal})["id"]
        answers: list[Reply] = []
        path = f"/v1/jobs/{job}/plans/0?wait=50"
        waiting = threading.Thread(target=lambda: answers.append(served.ask("GET", path)))
        waiting.start()
        time.sleep(0.5)
        served.process.terminate()
        waiting.join(PATIENCE_S)
        assert [answer.status for answer in answers] == [204]
