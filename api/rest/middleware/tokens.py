"""Before a request is handled: is its token good, and is its body within the limit?"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.direct_plans import WAITED
from seqplan.api.rest.wire.problems import Problem, problem
from seqplan.api.service.service import Service
from seqplan.api.store.access import known_tokens, scope_of
from seqplan.api.store.errors import StoreUnavailable

OPEN = ("/healthz", "/readyz")
"""What probes ask without a token; it tells nothing of the jobs."""


TOKENS_KEPT_S = 1.0
"""How long the tokens read from the store are used; one taken away may work that long."""


class Guard:
    """ASGI middleware: 401, 403 and 413; counts requests and tells ``answered`` path and time."""

    def __init__(
        self, app: ASGIApp, service: Service, answered: Callable[[str, float], None]
    ) -> None:
        self._app = app
        self._answered = answered
        self._service = service
        self._tokens: list[tuple[str, str]] = []
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken = 0
        began = time.perf_counter()
        upload = scope["path"] == "/v1/lengths"
        limits = self._service.limits
        most = limits.upload_bytes if upload else limits.body_bytes

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > most:
                    # FastAPI takes any other exception while it reads for a malformed body.
                    raise HTTPException(413, _too_large(most).detail)
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.counts[f"status {message['status']}"] += 1
                if not scope.get(WAITED):
                    self._answered(scope["path"], time.perf_counter() - began)
            await send(message)

        headers = Headers(scope=scope)
        try:
            if scope["path"] not in OPEN:
                needed = "read" if scope["method"] in ("GET", "HEAD") else "write"
                # One request reads them again; others go on with those at hand, if there are any.
                if self._stale() and (self._read_at < 0 or not self._reading.locked()):
                    await self._refresh()
                self._check(headers.get("authorization", ""), needed)
            if int(headers.get("content-length", "0")) > most:
                raise _too_large(most)
            await self._app(scope, limited, counted)
        except StoreUnavailable as error:
            answer = problem(503, "store-unavailable", str(error), {"Retry-After": "1"})
            await answer(scope, receive, counted)
        except Problem as error:
            more = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            answer = problem(
                error.status, error.kind, error.detail, {**more, "Connection": "close"}
            )
            await answer(scope, receive, counted)

    def _stale(self) -> bool:
        return time.monotonic() - self._read_at > TOKENS_KEPT_S

    async def _refresh(self) -> None:
        async with self._reading:
            if self._stale():
                self._tokens = await run_in_threadpool(self._read_tokens)
                self._read_at = time.monotonic()

    def _read_tokens(self) -> list[tuple[str, str]]:
        with self._service.store.reading() as connection:
            return known_tokens(connection)

    def _check(self, authorization: str, needed: str) -> None:
        if not self._tokens:
            return  # such a service listens on loopback only
        kind, _, token = authorization.partition(" ")
        found = scope_of(self._tokens, token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise Problem(401, "unauthorized", "this service wants a bearer token that it knows")
        if needed == "write" and found != "write":
            raise Problem(403, "forbidden", "this token may only read")


def _too_large(most: int) -> Problem:
    return Problem(413, "too-large", f"the body is larger than the {most} bytes allowed here")
