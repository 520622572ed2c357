"""Status, latency and id of each request; who began, stopped and deleted something is logged."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.direct_plans import WAITED
from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.middleware.tokens import TOKEN
from seqplan.api.rest.state.service_log import REQUEST
from seqplan.plans import service_routes

_log = logging.getLogger("seqplan.requests")

_HEADER = b"x-request-id"
_ID = re.compile(rb"[\w.:/+=-]{1,64}", re.ASCII)
_JOB = re.compile(service_routes.JOB.format(job="([^/]+)"))
_STEPWISE = (
    service_routes.ACKS,
    service_routes.ACKS_MANY,
    service_routes.BATCHES,
    service_routes.MEASUREMENTS,
    service_routes.PLAN_BATCH,
)
_OF_EACH_STEP = re.compile("|".join(map(service_routes.route_pattern, _STEPWISE)))


class Figures(HttpMiddleware):
    """Middleware that counts statuses and passes ``answered`` the path and the time (s).

    ``counts``: by ``status NUMBER``. Requests that waited for a plan are not timed. A request has
    the id of its X-Request-Id or a new one, which the response and lines of the log have, too.
    """

    def __init__(
        self, app: ASGIApp, counts: Counter[str], answered: Callable[[str, float], None]
    ) -> None:
        super().__init__(app)
        self._counts = counts
        self._answered = answered
        # A random number for each request would take the system longer than its plan takes.
        of_process = secrets.token_hex(3)
        self._ids = (f"{of_process}{number:06x}" for number in count(1))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        sent = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        request = sent if _ID.fullmatch(sent) else next(self._ids).encode()
        REQUEST.set(request.decode())

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - began
                self._counts[f"status {status}"] += 1
                if not scope.get(WAITED):
                    self._answered(scope["path"], seconds)
                message["headers"] = [*message.get("headers", ()), (_HEADER, request)]
                _log_request(scope, message, seconds)
            await send(message)

        await self._app(scope, receive, send_counted)


def _log_request(scope: Scope, message: Message, seconds: float) -> None:
    """Log changes that people make at INFO, all other requests at DEBUG."""
    method, path, status = scope["method"], scope["path"], message["status"]
    change = method in ("POST", "DELETE") and status < 400 and not _OF_EACH_STEP.fullmatch(path)
    level = logging.INFO if change else logging.DEBUG
    if not _log.isEnabledFor(level):
        return
    location = next((value for name, value in message["headers"] if name == b"location"), b"")
    match = _JOB.match(location.decode() or path)
    subject = location.decode() or path
    who = scope.get(TOKEN) or f"{(scope.get('client') or ('unknown',))[0]} without a token"
    line = (method, path, status, 1000 * seconds, who)
    if match is None:
        _log.log(level, "%s: %s %s: %d in %.1f ms, by %s", subject, *line)
    else:
        _log.log(level, "job %s: %s %s: %d in %.1f ms, by %s", match[1], *line)
