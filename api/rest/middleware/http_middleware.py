"""What middlewares have in common: they handle HTTP requests, and answer errors of theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.payloads.problems import Problem, make_closing_response, store_unavailable
from seqplan.api.store.errors import StoreUnavailable


class HttpMiddleware(ABC):
    """ASGI middleware whose ``handle`` gets the HTTP requests; all else goes on to ``app``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self.handle(scope, receive, send)
        except Problem as error:
            await make_closing_response(error)(scope, receive, send)
        except StoreUnavailable as error:
            await store_unavailable(error)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; a ``Problem`` is its answer, and so is ``StoreUnavailable``."""
