"""Before a request is handled: has its token had its requests of this second?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.middleware.tokens import OPEN, TOKEN
from seqplan.api.rest.payloads.problems import Problem, make_closing_response

_MOST_KNOWN = 4096
"""Tokens and addresses that are kept; beyond it those whose second has passed are dropped."""


@dataclass
class _Bucket:
    """Requests that are left, at the time of the last one (s)."""

    left: float
    at: float


class RateLimit:
    """ASGI middleware that answers 429 beyond ``rate`` requests a second of one token.

    Of one address in a service without tokens; None: no limit. A second's requests may come at
    once. Probes are not counted; a request that waits for a plan is one.
    """

    def __init__(self, app: ASGIApp, rate: int | None) -> None:
        self._app = app
        self._rate = rate
        self._buckets: dict[str, _Bucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = scope["type"] == "http" and scope["path"] not in OPEN
        if self._rate is None or not counted or self._take(scope, self._rate):
            await self._app(scope, receive, send)
            return
        whose = f"token {scope[TOKEN]}" if TOKEN in scope else "this address"
        detail = f"{whose} has sent more than {self._rate} requests a second. Wait a second"
        await make_closing_response(Problem(429, "too-many-requests", detail))(scope, receive, send)

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
