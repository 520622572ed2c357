"""Bodies and responses in the OpenAPI document, and rules of every route."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from stocked_service import Stocked

from seqplan.api.rest.payloads import bodies
from seqplan.api.rest.payloads.described import CONTENTS, DESCRIBED


def test_bodies_are_described(stocked: Stocked) -> None:
    paths = stocked.served.ok("GET", "/openapi.json")["paths"]
    for path, operations in paths.items():
        post = operations.get("post")
        if post is not None and not path.endswith(("/restart", "/stop")):
            assert post["requestBody"]["required"] is True, path
            assert post["requestBody"]["content"], path
    upload = paths["/v1/lengths"]["post"]
    assert [*upload["requestBody"]["content"]] == ["application/octet-stream"]
    form, field, rate = upload["parameters"]
    assert (field["name"], rate["name"]) == ("field", "bytes_per_token")
    assert form["schema"]["enum"] == ["npy", "jsonl", "txt", "histogram"]
    after = next(
        parameter
        for parameter in paths["/v1/jobs/{job}/measurements"]["get"]["parameters"]
        if parameter["name"] == "after"
    )
    assert after["schema"]["pattern"] == r"^(([0-9]{1,18})\.([0-9]{1,18}))?$"


def test_parameters_are_described_and_bodies_have_examples(stocked: Stocked) -> None:
    document = stocked.served.ok("GET", "/openapi.json")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                assert parameter["description"], (path, method, parameter)
    for kind in (value for value in vars(bodies).values() if isinstance(value, type)):
        if issubclass(kind, BaseModel) and kind not in (BaseModel, bodies.Continued):
            kind.model_validate(document["components"]["schemas"][kind.__name__]["example"])


def test_fields_are_described_and_examples_are_valid(stocked: Stocked) -> None:
    document = stocked.served.ok("GET", "/openapi.json")
    schemas, used = document["components"]["schemas"], set(CONTENTS)

    def check(schema: dict[str, Any], example: Any, place: str) -> None:
        Draft202012Validator({**schema, "components": {"schemas": schemas}}).validate(example)
        assert example is not None, place

    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            assert described["description"], (name, field)
            used |= {field, f"{name}.{field}"}
        check(schema, schema["example"], name)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                check(parameter["schema"], parameter["example"], f"{path} {parameter['name']}")
                used |= {parameter["name"], f"{operation['operationId']}.{parameter['name']}"}
            for status, response in operation["responses"].items():
                for content in response.get("content", {}).values() if status[0] == "2" else ():
                    check(content["schema"], content["example"], f"{method} {path} {status}")
    assert set(DESCRIBED) <= used
    assert {op["operationId"] for of in document["paths"].values() for op in of.values()} >= set(
        CONTENTS
    )


def test_answers_are_described(stocked: Stocked) -> None:
    document = stocked.served.ok("GET", "/openapi.json")
    bare = [
        f"{method} {path}: {status}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        if status in ("200", "201", "202")
        and not all(of_kind.get("schema") for of_kind in answer.get("content", {"": {}}).values())
    ]
    assert bare == []


def test_errors_are_described_by_status(stocked: Stocked) -> None:
    """Each status that a request gets here is in its operation's description."""
    served, paths = stocked.served, stocked.served.ok("GET", "/openapi.json")["paths"]
    job = stocked.job("described", 1, look_ahead=1)
    served.send("GET", f"/v1/jobs/{job}/plans/0?wait=60")
    for method, path, route, body in (
        ("GET", "/v1/jobs/none", "/v1/jobs/{job}", None),
        ("GET", f"/v1/jobs/{job}/plans/9", "/v1/jobs/{job}/plans/{step}", None),
        ("GET", "/v1/jobs?limit=0", "/v1/jobs", None),
        ("POST", "/v1/jobs", "/v1/jobs", {"proposal": 3}),
        ("POST", f"/v1/jobs/{job}/restart", "/v1/jobs/{job}/restart", None),
        ("DELETE", f"/v1/lengths/{stocked.lengths}", "/v1/lengths/{lengths}", None),
        ("POST", "/v1/jobs", "/v1/jobs", {"id": "x" * 70000, "proposal": ""}),
    ):
        reply = served.send(method, path, body)
        responses = paths[route][method.lower()]["responses"]
        assert reply.status >= 400
        assert str(reply.status) in responses, (method, path, reply.status)
        (content,) = responses[str(reply.status)]["content"]
        assert reply.headers["content-type"] == content
    assert "401" not in paths["/healthz"]["get"]["responses"]


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/profiles/llama-7b-a800-80gb", "/docs", "/readyz"]
)
def test_head_is_get_without_the_body(stocked: Stocked, path: str) -> None:
    get, head = (stocked.served.send(method, path) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"")
    for name in ("content-length", "content-type"):
        assert head.headers[name] == get.headers[name]


def test_head_of_plans_and_of_missing_ones(stocked: Stocked) -> None:
    served, job = stocked.served, stocked.job("head", 1)
    get = served.send("GET", f"/v1/jobs/{job}/plans/0?wait=60")
    head = served.send("HEAD", f"/v1/jobs/{job}/plans/0")
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", get.headers["etag"])
    assert served.send("HEAD", "/v1/jobs/none").status == 404
    reply = served.send("HEAD", f"/v1/jobs/{job}/restart")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert served.send("PUT", "/v1/jobs").headers["allow"] == "GET, HEAD, POST"
    # No redirect, which would name a host.
    assert served.send("GET", "/v1/jobs/").status == 404


def test_pages_have_the_same_protection(stocked: Stocked) -> None:
    docs, dashboard = (stocked.served.send("GET", path).headers for path in ("/docs", "/"))
    for name in ("content-security-policy", "x-content-type-options", "referrer-policy"):
        assert docs[name] == dashboard[name]


def test_a_new_job_is_answered_compactly(stocked: Stocked) -> None:
    body = {"id": "compact", "proposal": stocked.proposal}
    key = {"Idempotency-Key": "compact"}
    first = stocked.served.send("POST", "/v1/jobs", body, key)
    assert first.body == json.dumps(first.json, separators=(",", ":")).encode()
    # The removal of the result makes the key's answer void, as ever.
    assert stocked.served.send("DELETE", "/v1/jobs/compact").status == 204
    assert stocked.served.send("POST", "/v1/jobs", body, key).status == 201
    assert stocked.served.ok("GET", "/v1/jobs/compact")["id"] == "compact"
