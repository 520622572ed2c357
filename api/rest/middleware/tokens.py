"""Before a request is handled: is its bearer token good for it, or is it none of a foreign page?"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Collection

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.middleware.origins import check_host, check_origin
from seqplan.api.rest.payloads.problems import Problem, make_closing_response, store_unavailable
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import Token, find_token, list_tokens
from seqplan.plans.service_routes import (
    ACKS,
    ACKS_MANY,
    HEALTH,
    JOB,
    MEASUREMENTS,
    READINESS,
    RESTART,
    fill_route,
    route_pattern,
)

_OF_RANKS = re.compile("|".join(map(route_pattern, (ACKS, ACKS_MANY, MEASUREMENTS, RESTART))))

OPEN = (HEALTH, READINESS)
"""Paths of probes, which need no token and contain nothing of the jobs."""

TOKEN = "seqplan.token"
"""Name of a request's token in its scope."""

TOKENS_KEPT_S = 1.0
"""How long the tokens read from the store are used; one taken away may work that long."""


class Tokens:
    """ASGI middleware that answers 401 and 403, and 503 if the tokens cannot be read.

    ``hosts``: Host names, in addition to loopback, of a service without tokens. Once there
    was a token, or if ``required``, no request goes without: revoking the last opens nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        store: Store,
        hosts: Collection[str],
        *,
        required: bool,
        ranks_only: bool = False,
    ) -> None:
        self._ranks_only = ranks_only
        self._required = required
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._store = store
        self._tokens: list[Token] = []
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            try:
                await self._check(scope)
            except StoreUnavailable as error:
                await store_unavailable(error)(scope, receive, send)
                return
            except Problem as error:
                await make_closing_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        # One request reads them again; others go on with those at hand, if there are any.
        if self._stale() and (self._read_at < 0 or not self._reading.locked()):
            await self._refresh()
        self._required = self._required or bool(self._tokens)
        if not self._required:  # such a service listens on loopback only
            sent = dict(scope["headers"])
            host = sent.get(b"host")
            check_host(None if host is None else host.decode("latin-1"), self._hosts)
            if b"origin" in sent or b"sec-fetch-site" in sent:  # of browsers
                check_origin(scope["method"], Headers(scope=scope), self._hosts)
            if self._ranks_only:
                _check_of_ranks(scope["method"], scope["path"])
            return
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        allowed = find_token(self._tokens, token.strip()) if kind.lower() == "bearer" else None
        if allowed is None:
            raise Problem(401, "unauthorized", "a valid bearer token is required")
        scope[TOKEN] = allowed.name
        if scope["method"] not in ("GET", "HEAD") and allowed.scope != "write":
            raise Problem(403, "forbidden", "this token may only read")
        if allowed.job is not None:
            _check_job(scope["path"], allowed.job)

    def _stale(self) -> bool:
        return time.monotonic() - self._read_at > TOKENS_KEPT_S

    async def _refresh(self) -> None:
        async with self._reading:
            if self._stale():
                self._tokens = await run_in_threadpool(self._read_tokens)
                self._read_at = time.monotonic()

    def _read_tokens(self) -> list[Token]:
        with self._store.reading() as connection:
            return list_tokens(connection)


def _check_job(path: str, job: str) -> None:
    """Raise 403 unless the path is of this job. Its trainer begins no other and deletes none."""
    if path != fill_route(JOB, job=job) and not path.startswith(fill_route(JOB, job=job) + "/"):
        raise Problem(403, "forbidden", f"this token is for job {job} only")


def _check_of_ranks(method: str, path: str) -> None:
    """Raise 403 for a write that is not a rank's: any user of the machine reaches a sidecar."""
    if method in ("POST", "DELETE") and not _OF_RANKS.fullmatch(path):
        raise Problem(
            403,
            "forbidden",
            "without a token a sidecar takes acknowledgements and restarts only; name a "
            "token_file in its job file",
        )
