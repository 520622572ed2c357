"""Before a request is handled, and while its body comes in: is the body within the limit?"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.wire.problems import Problem, refusal
from seqplan.api.service.service import Limits

_UPLOADS = ("/v1/lengths",)
"""Paths whose bodies are streamed to the disk, and may be larger for it."""


class BodyLimit:
    """ASGI middleware that answers 413, whether a header says so beforehand or the body grows."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"] in _UPLOADS
        most = self._limits.upload_bytes if upload else self._limits.body_bytes
        if int(Headers(scope=scope).get("content-length", "0")) > most:
            await refusal(Problem(413, "too-large", _too_large(most)))(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > most:
                    # FastAPI takes any other exception while it reads for a malformed body.
                    raise HTTPException(413, _too_large(most))
            return message

        await self._app(scope, limited, send)


def _too_large(most: int) -> str:
    return f"the body is larger than the {most} bytes allowed here"
