"""Before a request is handled: has its path or query a NUL, which no name of the store has?"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.payloads.problems import Problem, make_closing_response


class NoNul:
    """ASGI middleware that answers 422: databases differ in how they reject such a text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for place, has in (
                ("path", "\0" in scope["path"]),
                ("query", b"%00" in scope["query_string"]),
            ):
                if has:
                    error = Problem(422, "invalid-request", f"{place}: has a NUL character")
                    await make_closing_response(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
