"""Around each request: does the service end before it is done?"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Message, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.problems import Problem

_log = logging.getLogger("seqplan.requests")


class Ending(HttpMiddleware):
    """Middleware that answers 503 if the service ends before a request is done."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            _log.warning("%s %s is cut off: the service ends", scope["method"], scope["path"])
            if not begun:
                detail = "the service is ending; retry with the next one"
                raise Problem(503, "ending", detail) from None
