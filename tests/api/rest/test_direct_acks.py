"""Acknowledgements get the same response with and without the framework."""

import json
from typing import Any

import pytest
from stocked_service import Stocked

BODIES: list[Any] = [
    {"step": 0, "rank": 1, "digest": None},
    {"step": 0, "rank": 1, "digest": None, "measured_ms": 1.5},
    {"step": 0, "rank": 1, "digest": None, "measured_ms": 2},
    {"step": 0, "rank": 1, "digest": None, "measured_ms": None},
    {"step": 0.0, "rank": 1.0, "digest": None},
    {"step": 0, "rank": 9, "digest": None},
    {"step": 9, "rank": 0, "digest": None},
    {"step": 0, "rank": 0, "digest": "sha256:other"},
    {"step": 0, "rank": -1, "digest": None},
    {"step": True, "rank": 0, "digest": None},
    {"step": 0, "rank": 0, "digest": "a\0b"},
    {"step": 0, "rank": 0, "digest": "\ud800"},
    {"step": 0, "rank": 0, "digest": None, "measured_ms": -1.0},
    {"step": 0, "rank": 0, "digest": None, "measured_ms": "1"},
    {"step": 0, "rank": 0},
    {"step": 0, "rank": 0, "digest": None, "more": 1},
    [],
    2**80,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body))
def test_an_answer_is_that_of_the_framework(stocked: Stocked, body: Any) -> None:
    served = stocked.served
    if served.send("GET", "/v1/jobs/acked").status == 404:
        stocked.job("acked", 2)
        assert served.send("GET", "/v1/jobs/acked/plans/1?wait=30").status == 200
    direct = served.send("POST", "/v1/jobs/acked/acks", body)
    # What the direct way leaves to the framework: JSON by another name.
    kind = {"Content-Type": "application/json; charset=utf-8"}
    other = served.send("POST", "/v1/jobs/acked/acks", json.dumps(body).encode(), kind)
    assert (direct.status, direct.json) == (other.status, other.json)
    assert direct.status < 500
    assert direct.headers["content-type"] == other.headers["content-type"]


def test_a_body_that_is_too_large_is_rejected(stocked: Stocked) -> None:
    body = {"step": 0, "rank": 0, "digest": "x" * 70_000}
    stocked.served.problem("POST", "/v1/jobs/none/acks", body, status=413)
    chunked = {"Transfer-Encoding": "chunked"}
    data = b"%x\r\n%s\r\n0\r\n\r\n" % (70_000, b"x" * 70_000)
    reply = stocked.served.send("POST", "/v1/jobs/none/acks", data, chunked)
    assert reply.status == 413, reply
