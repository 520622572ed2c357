"""Bodies of very many numbers, bodies that are far too large, and texts with a NUL."""

import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from service_process import serving_here
from sqlalchemy import create_engine
from stocked_service import WORLD, Stocked, stock

from seqplan.api.rest.payloads.bodies import PushedBatches
from seqplan.api.store import schema
from seqplan.planner.workload import MOST_GPUS


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stocked]:
    """A service on each kind of database."""
    folder = tmp_path_factory.mktemp("either")
    store, files = str(folder / "s.db"), None
    if request.param == "postgresql":
        store, files = request.getfixturevalue("postgresql_server"), folder
    with serving_here(store, files) as served:
        yield stock(served)
    if request.param == "postgresql":
        engine = create_engine(store)
        schema.metadata.drop_all(engine)
        engine.dispose()


def test_a_nul_is_no_outage(either: Stocked) -> None:
    served, job = either.served, either.job("nul", 1)
    assert served.send("GET", f"/v1/jobs/{job}/plans/0?wait=60").status == 200
    for path in ("/v1/jobs/%00", "/v1/lengths/a%00", "/v1/jobs?cursor=%00", "/v1/jobs/%00/plans/0"):
        assert "has a NUL character" in served.problem("GET", path)["detail"]
    ack = {"step": 0, "rank": 0, "digest": None}
    assert served.problem("POST", "/v1/jobs/%00/acks", ack)
    for text in ("a\0b", "\ud800"):
        _reject(either, job, text)
    assert served.send("GET", "/readyz").status == 200


def _reject(either: Stocked, job: str, text: str) -> None:
    """Send a text that no store keeps in each field."""
    served, ack = either.served, {"step": 0, "rank": 0, "digest": None}
    profile = served.ok("GET", "/v1/profiles/gpt-7b-a100-40gb")
    request = {"profile": "gpt-7b-a100-40gb", "lengths": text, "gpus": 8, "max_len": 4096}
    for path, body in (
        ("/v1/jobs", {"proposal": text}),
        ("/v1/jobs", {"proposal": either.proposal, "lengths": text, "steps": 1}),
        ("/v1/jobs", {"proposal": either.proposal, "continues": {"job": text, "step": 0}}),
        ("/v1/proposals", request),
        ("/v1/proposals", {**request, "lengths": either.lengths, "profile": text}),
        ("/v1/profiles", {**profile, "name": text}),
        (f"/v1/jobs/{job}/acks", {**ack, "digest": text}),
    ):
        detail = served.problem("POST", path, body)["detail"]
        assert re.search("NUL|control characters|half of a surrogate pair", detail), path


def test_many_acknowledgements_have_a_bound(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("many", 1)
    assert served.send("GET", f"/v1/jobs/{job}/plans/0?wait=60").status == 200
    path = f"/v1/jobs/{job}/acks/many"
    for ranks, message in (
        ([0] * 300_000, f"at most {MOST_GPUS} items"),
        ([1, 2, 1], "body.ranks: names rank 1 twice"),
        ([0, 1.5], "body.ranks[1]: "),
        ([0, "1"], "body.ranks[1]: "),
        ([0, True], "body.ranks[1]: "),
        ([], "body.ranks: "),
    ):
        problem = served.problem("POST", path, {"step": 0, "ranks": ranks, "digest": None})
        assert message in problem["detail"]
    whole = {"step": 0, "ranks": [0.0, *range(1, WORLD)], "digest": None}
    assert served.ok("POST", path, whole)["ranks"] == [*range(WORLD)]
    assert served.problem("POST", path, {"step": 0, "ranks": [0], "digest": None, "more": 1})
    plain = served.send(
        "POST", path, b'{"step":0,"ranks":[0],"digest":null}', {"Content-Type": "text/plain"}
    )
    assert plain.status == 422
    assert "application/json" in plain.json["detail"]
    assert "JSON" in served.problem("POST", path, b'{"step":')["detail"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/proposals"])
@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        ("application/x-www-form-urlencoded", b"{}", "body: must be application/json"),
        ("application/json", b"[]", "body: must be an object"),
    ],
)
def test_bodies_that_are_no_objects(
    stocked: Stocked, path: str, kind: str, body: bytes, detail: str
) -> None:
    reply = stocked.served.send("POST", path, body, {"Content-Type": kind})
    assert (reply.status, reply.json["detail"]) == (422, detail)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/none/acks", "/v1/jobs/none/batches"])
@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"id":"a","id":"b"}', "body: not JSON: field 'id' is written twice. Remove one"),
        (b'{"step":0,"step":1}', "body: not JSON: field 'step' is written twice. Remove one"),
        (b'{"step":NaN}', "body: not JSON: NaN is not a number of JSON. Use a finite number"),
        (b'{"step":%s}' % (b"9" * 5000), "body: not JSON: Exceeds the limit (4300 digits)"),
        (b"[" * 20_000, "body: not JSON: too deeply nested"),
        (b"\xff", "body: not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"", "body: not JSON: Expecting value"),
    ],
)
def test_texts_that_are_no_json(stocked: Stocked, path: str, body: bytes, detail: str) -> None:
    kind = {"Content-Type": "application/json"}
    reply = stocked.served.send("POST", path, body, kind)
    assert (reply.status, reply.json["detail"][: len(detail)]) == (422, detail)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/none/acks", "/v1/proposals"])
def test_requests_of_a_few_fields_are_small(stocked: Stocked, path: str) -> None:
    reply = stocked.served.send("POST", path, b" " * (1 << 17))
    assert (reply.status, reply.json["type"]) == (413, "urn:seqplan:problem:too-large")


def _calls(body: bytes) -> int:
    """How many functions of Python are called to check a body."""
    count = 0

    def counted(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        PushedBatches.model_validate_json(body)
    except ValidationError:
        pass
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("number", ["5", "5.0", '"5"', "0"])
def test_checking_a_batch_calls_nothing_for_each_number(number: str) -> None:
    lists = (",".join([number] * n) for n in (10, 20_000))
    few, many = (
        f'{{"batches":[{{"step":0,"ids":[{numbers}],"lengths":[{numbers}]}}]}}' for numbers in lists
    )
    if number == "5.0":  # which JSON has for 5, and few writers
        assert PushedBatches.model_validate_json(many).batches[0].ids == [5] * 20_000
    else:
        assert _calls(many.encode()) == _calls(few.encode())


def test_the_schema_describes_accepted_bodies(stocked: Stocked) -> None:
    document = stocked.served.ok("GET", "/openapi.json")
    schemas = document["components"]["schemas"]
    assert schemas["Acks"]["properties"]["ranks"]["maxItems"] == MOST_GPUS
    assert schemas["PushedBatch"]["properties"]["ids"]["items"]["minimum"] == 0
    for path in ("/v1/jobs/{job}/batches", "/v1/jobs/{job}/acks/many"):
        assert document["paths"][path]["post"]["requestBody"]["required"] is True
    assert TypeAdapter(PushedBatches).json_schema()["properties"]["batches"]["type"] == "array"
