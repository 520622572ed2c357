"""Before a request is handled: is it HEAD, which is answered as GET is?"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.direct_plans import WAITED


class Head:
    """ASGI middleware that has HEAD answered as GET is, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope[WAITED] = True  # not among the times of requests

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
