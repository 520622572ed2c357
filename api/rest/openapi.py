"""The OpenAPI document: what the framework derives from the routes, and how errors look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from seqplan.api.rest.payloads import bodies
from seqplan.api.rest.payloads.described import CONTENTS, describe_name, make_example
from seqplan.plans.service_routes import HEALTH, PLAN, READINESS

_BODIES: tuple[type[BaseModel], ...] = (
    bodies.Ack,
    bodies.Acks,
    bodies.JobProposal,
    bodies.MeasurementRequest,
    bodies.NewJob,
    bodies.NewProposal,
    bodies.PushedBatch,
    bodies.PushedBatches,
)
"""Bodies of requests, which ``json_body`` reads and the framework does not describe."""

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "example": {
        "type": "urn:seqplan:problem:not-found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no job run1",
    },
    "properties": {
        "type": {"type": "string", "description": "urn:seqplan:problem:KIND"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "the problem, its place and the fix"},
    },
}


_STATUSES = {
    "401": "No valid token, and the service has tokens",
    "403": "The token, or the host or page of the request, does not allow this",
    "404": "Nothing has this name",
    "409": "The state does not allow this now; the detail names it",
    "410": "After the last step, or expired",
    "413": "The body is too large",
    "415": "The body is compressed",
    "422": "A field is not valid; the detail names it and the fix",
    "424": "Planning of the job failed or was stopped",
    "429": "More requests than --rate-limit allows a second; retry after Retry-After",
    "503": "The store or the service is busy or not reachable; retry after Retry-After",
}


def _list_statuses(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    """Yield the statuses of errors that an operation may have."""
    if path not in (HEALTH, READINESS):
        yield from ("401", "403", "429")
    if "{" in path:
        yield "404"
    if method != "get":
        yield "409"
    if path.startswith(PLAN):
        yield from ("410", "424")
    if "requestBody" in operation:
        yield from ("413", "415")
    if "requestBody" in operation or operation.get("parameters"):
        yield "422"
    if path != HEALTH:
        yield "503"


def describe(app: FastAPI) -> None:
    """Have the application describe itself, every error of every route as problem+json."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
            schemas["Problem"] = _PROBLEM
            for kind in _BODIES:
                schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= schema.pop("$defs", {})
                schemas[kind.__name__] = schema
            document["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "made by --add-token"}
            }
            _describe_fields(schemas)
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    _add_examples(operation, schemas)
                    _describe_problems(path, method, operation)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_fields(schemas: dict[str, Any]) -> None:
    """Describe each field of each schema, and add an example of the schema."""
    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            if not described.get("description"):
                described["description"] = describe_name(name, field)[0]
        if "properties" in schema:
            schema.setdefault("example", make_example(schemas, name))


def _add_examples(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Describe parameters, and add examples of them and of successful responses."""
    operation_id = operation["operationId"]
    for parameter in operation.get("parameters", ()):
        description, example = describe_name(operation_id, parameter["name"])
        if not parameter.get("description"):
            parameter["description"] = description
        parameter["example"] = example
    for status, response in operation["responses"].items():
        for content in response.get("content", {}).values() if status < "3" else ():
            _, _, name = content["schema"].get("$ref", "").rpartition("/")
            content["example"] = schemas[name]["example"] if name else CONTENTS[operation_id]


def _describe_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    """Describe the errors of an operation by status; any other is ``default``."""
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses = operation["responses"]
    responses.pop("422", None)
    for status in _list_statuses(path, method, operation):
        responses[status] = {"description": _STATUSES[status], "content": problem}
    responses["default"] = {"description": "A problem (RFC 9457)", "content": problem}
    # An empty requirement: without tokens in the store, none is required.
    operation["security"] = [{}, {"token": []}]
