"""The OpenAPI document: what the framework derives from the routes, and how errors look."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from seqplan.api.rest.payloads.bodies import Acks, PushedBatches

_LARGE: tuple[type[BaseModel], ...] = (Acks, PushedBatches)
"""Bodies that the framework does not read itself, and so does not describe."""

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:seqplan:problem:KIND"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "the problem, its place and the fix"},
    },
}


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
            for methods in document["paths"].values():
                for operation in methods.values():
                    _describe_problems(operation)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_problems(operation: dict[str, Any]) -> None:
    """Describe ``default``: any other status is a problem; the operation's text lists them."""
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "A problem (RFC 9457)",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    # An empty requirement: without tokens in the store, none is required.
    operation["security"] = [{}, {"token": []}]
