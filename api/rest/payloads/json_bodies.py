"""JSON bodies of requests; long ones are read in a thread, so that others are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from seqplan.plans.format.canonical import parse_json

Body = TypeVar("Body", bound=BaseModel)

SMALL = 32_768
"""Bytes that are parsed at once, in less time than a thread takes to begin."""


def json_body(kind: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """Make the dependency that reads a request's body as ``kind``."""

    def parse_body(text: bytes) -> Body:
        try:
            fields = parse_json(text.decode())
        except ValueError as error:
            raise ValueError(f"body: not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError("body: must be an object")
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = {**first, "loc": ("body", *first["loc"])}
            raise RequestValidationError([place]) from None

    async def read(request: Request) -> Body:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":  # which no page of another site can send unasked
            raise ValueError("body: must be application/json")
        text = await request.body()
        if len(text) <= SMALL:
            return parse_body(text)
        return await run_in_threadpool(parse_body, text)

    return read
