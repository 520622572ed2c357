"""Before a request is handled: is its bearer token good for it, or is it none of a foreign page?"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import Token, find_token, list_tokens
from seqplan.plans import service_routes

_WRITTEN_BY_RANKS = (
    service_routes.ACKS,
    service_routes.ACKS_MANY,
    service_routes.MEASUREMENTS,
    service_routes.RESTART,
)
_OF_RANKS = re.compile("|".join(map(service_routes.route_pattern, _WRITTEN_BY_RANKS)))

READS = ("GET", "HEAD")

OPEN = (service_routes.HEALTH, service_routes.READINESS)
"""Paths of probes, which need no token and contain nothing of the jobs."""

TOKEN = "seqplan.token"
"""Name of a request's token in its scope."""

TOKENS_KEPT_S = 1.0
"""How long the tokens read from the store are used; one taken away may work that long."""


@dataclass(frozen=True)
class Access:
    """Requests that a service accepts without a token.

    ``hosts``: Host names, in addition to loopback, of a service without tokens. ``guarded``:
    every request needs a token, whether there is any or not. ``ranks_only``: without tokens it
    takes what ranks write, acknowledgements and times, and nothing else.
    """

    hosts: Collection[str] = ()
    guarded: bool = False
    ranks_only: bool = False


class Tokens(HttpMiddleware):
    """Middleware that answers 401 and 403, and 503 if the tokens cannot be read.

    Once there was a token, no request goes without: revoking the last opens nothing.
    """

    def __init__(self, app: ASGIApp, store: Store, access: Access) -> None:
        super().__init__(app)
        self._access = access
        self._required = access.guarded
        self._hosts = frozenset(host.lower() for host in access.hosts)
        self._store = store
        self._tokens: list[Token] = []
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN:
            await self._check(scope)
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
            if self._access.ranks_only:
                _check_of_ranks(scope["method"], scope["path"])
            return
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        allowed = find_token(self._tokens, token.strip()) if kind.lower() == "bearer" else None
        if allowed is None:
            raise Problem(401, "unauthorized", "a valid bearer token is required")
        scope[TOKEN] = allowed.name
        if scope["method"] not in READS and allowed.scope != "write":
            raise Problem(403, "forbidden", "this token may only read")
        if allowed.job is not None:
            _check_job(scope["method"], scope["path"], allowed.job)

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


def _check_job(method: str, path: str, job: str) -> None:
    """Raise 403 unless the path is of this job. Its trainer begins no other and deletes none."""
    allowed = service_routes.fill_route(service_routes.JOB, job=job)
    if path != allowed and not path.startswith(f"{allowed}/"):
        raise Problem(403, "forbidden", f"this token is for job {job} only")
    if path == allowed and method not in READS:
        problem = f"the token of job {job} does not remove it. Use one without --token-job"
        raise Problem(403, "forbidden", problem)


def _check_of_ranks(method: str, path: str) -> None:
    """Raise 403 for a write that is not a rank's: any user of the machine reaches a sidecar."""
    if method not in READS and not _OF_RANKS.fullmatch(path):
        raise Problem(
            403,
            "forbidden",
            "without a token a sidecar takes acknowledgements, times and restarts only; name a "
            "token_file in its job file",
        )


_MOST_KNOWN = 4096
"""Tokens and addresses that are kept; beyond it those whose second has passed are dropped."""


@dataclass
class _Bucket:
    """Requests that are left, at the time of the last one (s)."""

    left: float
    at: float


class RateLimit(HttpMiddleware):
    """Middleware that answers 429 beyond ``rate`` requests a second of one token.

    Of one address in a service without tokens; None: no limit. A second's requests may come at
    once. Probes are not counted; a request that waits for a plan is one.
    """

    def __init__(self, app: ASGIApp, rate: int | None) -> None:
        super().__init__(app)
        self._rate = rate
        self._buckets: dict[str, _Bucket] = {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        rate = self._rate if scope["path"] not in OPEN else None
        if rate is not None and not self._take(scope, rate):
            whose = f"token {scope[TOKEN]}" if TOKEN in scope else "this address"
            detail = f"{whose} has sent more than {rate} requests a second. Wait a second"
            raise Problem(429, "too-many-requests", detail)
        await self._app(scope, receive, send)

    def _take(self, scope: Scope, rate: int) -> bool:
        client = scope.get("client")
        # No token's name has a slash.
        key = scope.get(TOKEN) or f"/{client[0] if client else ''}"
        now = time.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MOST_KNOWN:
                self._buckets = {k: b for k, b in self._buckets.items() if now - b.at < 1}
            bucket = self._buckets[key] = _Bucket(rate, now)
        bucket.left = min(rate, bucket.left + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True


_READING = ("GET", "HEAD", "OPTIONS")
_OWN = ("same-origin", "none")
"""Sec-Fetch-Site of the service's page, and of a typed address."""


def is_loopback(host: str) -> bool:
    """Whether a host, an address or a name, is this machine by any name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_host(name: str | None, hosts: frozenset[str]) -> None:
    """Raise 403 for a Host that is neither loopback nor in ``hosts`` (lower case)."""
    if name is not None and not _is_known(name, hosts):  # every browser sends it
        raise Problem(
            403,
            "foreign-host",
            f"Host {name!r}: without tokens this service answers by localhost and loopback "
            "addresses only; make a token, or name the host with --allow-host",
        )


def check_origin(method: str, headers: Headers, hosts: Collection[str]) -> None:
    """Raise 403 for a write by a page of another origin; ``hosts`` as above."""
    if method in _READING:
        return
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    foreign = origin is not None and not _same(origin, headers.get("host", ""), hosts)
    if site not in _OWN or foreign:
        who = f"a page of {origin}" if origin is not None else f"a {site} page"
        why = f"{who} may not write here; send it from outside a browser, or make a token"
        raise Problem(403, "foreign-origin", why)


def _same(origin: str, host: str, hosts: Collection[str]) -> bool:
    """Return whether an origin is the request's host or one of the further hosts."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or name is None:
        return False  # "null" or no origin
    return parts.netloc.lower() == host.lower() or name.lower() in hosts


@lru_cache(maxsize=64)  # every rank sends the same, in every step
def _is_known(host: str, hosts: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and (is_loopback(name) or name in hosts)
