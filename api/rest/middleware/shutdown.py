"""Around each request: does the service end before it is done?"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.payloads.problems import Problem, make_closing_response

_log = logging.getLogger("seqplan.requests")


class Ending:
    """ASGI middleware that answers 503 if the service ends before a request is done."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            _log.warning("%s %s is cut off: the service ends", scope["method"], scope["path"])
            if not begun:
                error = Problem(503, "ending", "the service is ending; retry with the next one")
                await make_closing_response(error)(scope, receive, send)
