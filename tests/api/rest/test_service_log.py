"""The service's log: time, level, job and request of each line; who changed something."""

import json
import re
from pathlib import Path
from typing import Any

from command_line import call, complaint, succeeded
from logged_service import serving_logged
from stocked_service import Stocked, stock

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def token_for(store: Path, *more: str) -> dict[str, str]:
    arguments = ("serve", "--store", store, "--add-token", *more)
    return {"Authorization": f"Bearer {succeeded(call(*arguments)).strip()}"}


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def test_changes_are_logged_with_who_made_them(tmp_path: Path) -> None:
    log, store = tmp_path / "log", tmp_path / "s.db"
    anna = token_for(store, "anna", "--scope", "write")
    with serving_logged(log, "--store", store, "--port", 0, "--log", "json:info") as served:
        served.headers = anna
        job = stock(served).job("j", 2)
        served.send("GET", f"/v1/jobs/{job}/plans/0?wait=60")
        served.ok("POST", f"/v1/jobs/{job}/acks", {"step": 0, "rank": 0, "digest": None})
        served.send("POST", f"/v1/jobs/{job}/restart")  # 409: changes nothing
        reply = served.send("DELETE", f"/v1/jobs/{job}", headers={"X-Request-Id": "mine-1"})
        assert reply.headers["x-request-id"] == "mine-1"
    changes = [line for line in lines(log) if line["logger"] == "seqplan.requests"]
    for line in changes:
        assert re.fullmatch(TIME, line["time"])
        assert line["level"] == "info"
        assert line["message"].endswith(", by anna")
    shown = [(line.get("job"), line["message"].split(" in ")[0]) for line in changes]
    assert shown[2:] == [("j", "job j: POST /v1/jobs: 201"), ("j", "job j: DELETE /v1/jobs/j: 204")]
    assert [message.split(": ", 1)[1] for _, message in shown[:2]] == [
        "POST /v1/lengths: 201",
        "POST /v1/proposals/documents: 201",
    ]
    assert changes[-1]["request"] == "mine-1"
    assert len({line["request"] for line in changes}) == 4


def test_levels(tmp_path: Path) -> None:
    for level, requests in (("debug", True), ("warning", False)):
        log = tmp_path / level
        options = ("--store", tmp_path / f"{level}.db", "--port", 0, "--log", level)
        with serving_logged(log, *options) as served:
            reply = served.send("GET", "/v1/jobs", headers={"X-Request-Id": "no spaces!"})
            stock(served)
        request = reply.headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{12}", request)
        wanted = rf"^{TIME} DEBUG seqplan\.requests \[{request}\]: /v1/jobs: GET /v1/jobs: 200 in "
        wanted += r"[\d.]+ ms, by 127\.0\.0\.1 without a token$"
        assert bool(re.search(wanted, log.read_text(), re.MULTILINE)) is requests
        assert ("POST /v1/lengths: 201" in log.read_text()) is requests
    assert "argument --log: must be debug, info, warning or error" in complaint(
        call("serve", "--store", "s", "--log", "loud")
    )


def test_tokens_of_a_job_and_with_an_end(tmp_path: Path, stocked: Stocked) -> None:
    log, store = tmp_path / "log", tmp_path / "s.db"
    every = token_for(store, "all", "--scope", "write")
    only = token_for(store, "j's", "--scope", "write", "--token-job", "j", "--token-days", "0.5")
    over = token_for(store, "over", "--token-days", "0.000001")
    listed = succeeded(call("serve", "--store", store, "--list-tokens")).splitlines()
    assert listed[0] == "write\tall"
    assert re.fullmatch(r"write\tj's\tjob j\tuntil \S+Z", listed[1])
    with serving_logged(log, "--store", store, "--port", 0) as served:
        served.headers = every
        stocked_here = stock(served)
        stocked_here.job("j", 2)
        stocked_here.job("other", 2)

        def status(method: str, path: str, headers: dict[str, str], body: Any = None) -> int:
            return served.send(method, path, body, headers).status

        ack = {"step": 0, "rank": 0, "digest": None}
        assert status("GET", "/v1/jobs/j/plans/0?wait=60", only) == 200
        assert status("POST", "/v1/jobs/j/acks", only, ack) == 200
        assert status("GET", "/v1/jobs/j", only) == 200
        for path in ("/v1/jobs/other", "/v1/jobs/j2", "/v1/jobs", "/v1/progress", "/metrics"):
            assert status("GET", path, only) == 403, path
        reply = served.send("DELETE", "/v1/jobs/other", headers=only)
        assert (reply.status, reply.json["detail"]) == (403, "this token is for job j only")
        reply = served.send("DELETE", "/v1/jobs/j", headers=only)
        assert reply.status == 403
        assert reply.json["detail"].startswith("the token of job j does not remove it. ")
        assert status("GET", "/v1/jobs", over) == 401
    for option in (("--token-days", "3"), ("--scope", "write")):
        message = complaint(call("serve", "--store", store, *option))
        assert message.endswith("--token-days: are for a new token. Give --add-token NAME")
