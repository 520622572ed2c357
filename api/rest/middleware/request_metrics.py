"""Status and latency of each request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.direct_plans import WAITED


class Figures:
    """ASGI middleware that counts statuses and passes ``answered`` the path and the time (s).

    ``counts``: by ``status NUMBER``. Requests that waited for a plan are not timed.
    """

    def __init__(
        self, app: ASGIApp, counts: Counter[str], answered: Callable[[str, float], None]
    ) -> None:
        self._app = app
        self._counts = counts
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts[f"status {message['status']}"] += 1
                if not scope.get(WAITED):
                    self._answered(scope["path"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, send_counted)
