"""What all routes have in common: keys, pages, problems; probes and metrics."""

from typing import Any

import pytest
from stocked_service import Stocked


def test_idempotency_keys(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("once", 1)
    served.send("GET", f"/v1/jobs/{job}/plans/0?wait=30")
    path, body = f"/v1/jobs/{job}/measurements", {"step": 0, "rank": 1, "measured_ms": 12.5}
    key = {"Idempotency-Key": "k"}
    first = served.send("POST", path, body, key)
    assert (first.status, served.send("POST", path, body, key).body) == (200, first.body)
    assert (
        served.send("POST", path, {**body, "measured_ms": 9.0}, key)
        .json["type"]
        .endswith("key-reused")
    )
    new = {"proposal": stocked.proposal}
    created = served.send("POST", "/v1/jobs", new, {"Idempotency-Key": "new"})
    assert created.json == served.send("POST", "/v1/jobs", new, {"Idempotency-Key": "new"}).json
    assert served.ok("POST", "/v1/jobs", new)["id"] != created.json["id"]


def test_pages(stocked: Stocked) -> None:
    served = stocked.served
    names = {stocked.job(f"page-{k}", 1) for k in range(3)}
    ids: list[str] = []
    cursor = ""
    while cursor is not None:
        page = served.ok("GET", f"/v1/jobs?limit=2&cursor={cursor}")
        assert len(page["items"]) <= 2
        ids += [row["id"] for row in page["items"]]
        cursor = page["next"]
    assert ids == sorted(set(ids))
    assert names <= set(ids)
    assert stocked.lengths in {row["id"] for row in served.ok("GET", "/v1/lengths")["items"]}
    assert "llama-7b-a800-80gb" in served.ok("GET", "/v1/profiles")["shipped"]


def test_lengths_and_profiles(stocked: Stocked) -> None:
    served = stocked.served
    shown = served.ok("GET", f"/v1/lengths/{stocked.lengths}")
    assert sum(bucket[2] for bucket in shown["histogram"]) == shown["sequences"] == 32514
    document = served.ok("GET", "/v1/profiles/gpt-7b-a100-40gb")
    profile = served.ok("POST", "/v1/profiles", {**document, "name": "mine"})
    assert served.ok("GET", f"/v1/profiles/{profile['id']}")["name"] == "mine"


ACK = {"step": 0, "rank": 0, "digest": None}


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
        ("POST", "/v1/jobs", b'{"proposal":', 422, "body: not JSON: Expecting value"),
        ("GET", "/v1/jobs/none", None, 404, "there is no job none"),
        ("GET", "/v1/jobs/none/plans/0?wait=30", None, 404, "there is no job none"),
        ("GET", "/v1/jobs/none/plans/x", None, 422, "path.step: "),
        ("GET", "/v1/jobs/none/plans/1_0", None, 422, "path.step: must be a whole number"),
        ("GET", "/v1/jobs?limit=1_0", None, 422, "query.limit: must be a whole number, in digits"),
        ("GET", "/v1/jobs?limt=3", None, 422, "query.limt: unknown parameter. The route has cur"),
        ("GET", "/v1/jobs?limit=3&limit=4", None, 422, "query.limit: given twice. Give it once"),
        ("GET", "/v1/jobs/none/plans/0?wiat=3", None, 422, "query.wiat: unknown parameter."),
        ("POST", "/v1/jobs/none/acks?x=1", ACK, 422, "query.x: unknown parameter. The route has "),
        ("GET", "/v1/nothing", None, 404, "/v1/nothing"),
        ("DELETE", "/v1/jobs", None, 405, "DELETE /v1/jobs"),
        ("POST", "/v1/jobs/none/acks", {"step": 0, "rank": 0}, 422, "body.digest: "),
    ],
)
def test_bad_requests_are_problems(
    stocked: Stocked, method: str, path: str, body: Any, status: int, detail: str
) -> None:
    assert detail in stocked.served.problem(method, path, body, status)["detail"]


def test_probes_metrics_and_docs(stocked: Stocked) -> None:
    served = stocked.served
    assert served.send("GET", "/healthz?probe=7").body == b"ok\n"
    assert served.send("GET", "/readyz").body == b"ready\n"
    metrics = served.send("GET", "/metrics").body.decode()
    assert "# TYPE seqplan_jobs gauge" in metrics
    assert 'seqplan_requests_total{status="200"}' in metrics
    assert 'seqplan_request_seconds_bucket{kind="other",le="+Inf"}' in metrics
    assert "# TYPE seqplan_calibration_error gauge" in metrics
    page = served.send("GET", "/docs").body.decode()
    assert "GET /v1/jobs/{job}/plans/{step}" in page
    assert "<script" not in page
    assert "/v1/jobs/{job}/acks" in served.ok("GET", "/openapi.json")["paths"]


def test_a_repeated_post_has_the_location_again(stocked: Stocked) -> None:
    served = stocked.served
    for path, body in (
        ("/v1/jobs", {"id": "located", "proposal": stocked.proposal}),
        ("/v1/lengths?format=txt", b"5\n6\n7\n"),
        ("/v1/profiles", served.ok("GET", "/v1/profiles/gpt-7b-a100-40gb")),
    ):
        key = {"Idempotency-Key": "again"}
        first, again = (served.send("POST", path, body, key) for _ in range(2))
        assert (first.status, again.status) == (201, 201)
        assert again.body == first.body
        place = f"{path.partition('?')[0]}/{first.json['id']}"
        assert again.headers["location"] == first.headers["location"] == place


@pytest.mark.parametrize("path", ["jobs", "lengths", "proposals", "profiles", "progress"])
def test_one_limit_of_pages(stocked: Stocked, path: str) -> None:
    assert stocked.served.send("GET", f"/v1/{path}?limit=1000").status == 200
    assert "limit" in stocked.served.problem("GET", f"/v1/{path}?limit=1001")["detail"]


@pytest.mark.parametrize("path", ["measurements", "steps"])
def test_one_limit_of_pages_of_a_job(stocked: Stocked, path: str) -> None:
    job = stocked.job(f"paged-{path}", 1)
    assert stocked.served.send("GET", f"/v1/jobs/{job}/{path}?limit=1000").status == 200
    assert "limit" in stocked.served.problem("GET", f"/v1/jobs/{job}/{path}?limit=1001")["detail"]
