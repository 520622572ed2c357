"""The OpenAPI document: what the framework derives from the routes, and how errors look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from seqplan.api.rest.payloads.bodies import Acks, PushedBatch, PushedBatches
from seqplan.plans.service_routes import HEALTH, PLAN, READINESS

_LARGE: tuple[type[BaseModel], ...] = (Acks, PushedBatch, PushedBatches)
"""Bodies that the framework does not read itself, and so does not describe."""

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
    "422": "A field is not valid; the detail names it and the fix",
    "424": "Planning of the job failed or was stopped",
    "429": "More requests than --rate-limit allows a second; retry after Retry-After",
    "503": "The store or the service is busy or not reachable; retry after Retry-After",
}


_PARAMETERS = {
    "job": "id of a job",
    "proposal": "id of a proposal",
    "profile": "id of an uploaded profile, or name of a shipped one",
    "lengths": "id of a data set",
    "step": "number of a step",
    "rank": "number of a rank",
    "cursor": "next of the page before; empty for the first one",
    "after": "next of the page before",
    "limit": "most items of the page",
    "format": "form of the body",
    "state": "only jobs in these states, with commas between them",
}
"""Descriptions of parameters whose routes have none, by name."""


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
        yield "413"
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
            for kind in _LARGE:
                schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= schema.pop("$defs", {})
                schemas[kind.__name__] = schema
            document["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "made by --add-token"}
            }
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    for parameter in operation.get("parameters", ()):
                        parameter.setdefault("description", _PARAMETERS.get(parameter["name"], ""))
                    _describe_problems(path, method, operation)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


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
