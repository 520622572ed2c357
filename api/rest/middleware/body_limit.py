"""Before a request is handled, and while its body comes in: can it be read, within the limits?"""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.service.service import Limits
from seqplan.plans import service_routes

_UPLOADS = (service_routes.LENGTHS,)
"""Paths whose bodies are streamed to the disk, and may be larger for it."""

_LARGE = (
    service_routes.PROFILES,
    service_routes.PROPOSAL_DOCUMENTS,
    service_routes.BATCHES,
    service_routes.ACKS_MANY,
    service_routes.PLAN_BATCH,
)
_DOCUMENTS = re.compile(f"(?:{'|'.join(map(service_routes.route_pattern, _LARGE))})/?")
"""Paths whose bodies are documents or many numbers; all others are a few fields."""


class BodyLimit(HttpMiddleware):
    """Middleware that answers 413, by the header or as the body grows; 415 to compressed ones."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self._limits = limits

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._most(scope["path"])
        headers = dict(scope["headers"])
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip()
        if encoding.lower() != "identity":
            why = f"content-encoding: {encoding:.40} is not supported. Send the body uncompressed"
            raise Problem(415, "unsupported-encoding", why)
        if int(headers.get(b"content-length", b"0")) > most:
            raise Problem(413, "too-large", _too_large(most))
        taken = 0

        async def receive_limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > most:
                    # FastAPI takes any other exception while it reads for a malformed body.
                    raise HTTPException(413, _too_large(most))
            return message

        await self._app(scope, receive_limited, send)

    def _most(self, path: str) -> int:
        if path in _UPLOADS:
            return self._limits.upload_bytes
        document = _DOCUMENTS.fullmatch(path)
        return self._limits.body_bytes if document else self._limits.request_bytes


def _too_large(most: int) -> str:
    return f"the body is larger than the {most} bytes allowed here"


class NoNul(HttpMiddleware):
    """Middleware that answers 422: databases differ in how they reject such a text."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        in_path = "\0" in scope["path"]
        if in_path or b"%00" in scope["query_string"]:
            place = "path" if in_path else "query"
            raise Problem(422, "invalid-request", f"{place}: has a NUL character")
        await self._app(scope, receive, send)
