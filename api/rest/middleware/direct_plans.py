"""Fast path for the plans and rank views that every rank requests in every step.

These two requests are answered before the framework sees them, as its routing and validation take
several times as long as sending a few kilobytes does. Any other request, and every
error, goes on to the routes of the same paths in ``routes/plans``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.parameters import LONGEST_WAIT_S
from seqplan.api.rest.payloads.plan_response import answer, send_bytes
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.state.plan_waiters import PlanWaiters
from seqplan.api.store.errors import RowDamaged
from seqplan.plans.service_routes import PLAN, VIEW

WAITED = "seqplan.waited"
"""Set in a request's scope when its plan was not at hand."""

_GROUPS = {"job": r"([^/\0]+)", "step": "(0|[1-9][0-9]{0,14})", "rank": "(0|[1-9][0-9]{0,9})"}
_PLAN, _VIEW = (route.format_map(_GROUPS) for route in (PLAN, VIEW))
_PATH = re.compile(f"{_PLAN}(?:{_VIEW.removeprefix(_PLAN)})?")
_WAIT = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")


class PlanAnswers(HttpMiddleware):
    """Middleware that answers ``…/plans/{step}`` and ``…/plans/{step}/ranks/{rank}``."""

    def __init__(self, app: ASGIApp, waiters: Callable[[], PlanWaiters]) -> None:
        super().__init__(app)
        self._waiters = waiters

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (
            scope["method"] == "GET"
            and (match := _PATH.fullmatch(scope["path"]))
            and (wait := _wait(scope["query_string"])) is not None
        ):
            await self._app(scope, receive, send)
            return
        job, step = match[1], int(match[2])
        rank = None if match[3] is None else int(match[3])
        waiters = self._waiters()
        waiters.note_request(job)
        try:
            ready = waiters.at_hand(job, step)
            if ready is None:
                scope[WAITED] = True
                ready = await waiters.plan(job, step, wait)
            if rank is not None and ready is not None:
                ready = await waiters.add_views(job, ready)
                waiters.note_view(job, ready)
            status, headers, body = answer(ready, rank, scope["headers"])
        except (Problem, RowDamaged):
            await self._app(scope, receive, send)
            return
        await send_bytes(send, status, headers, body)


def _wait(query: bytes) -> float | None:
    """Return the seconds to wait; None for a query that the framework must validate."""
    if not query:
        return 0.0
    parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if len(parameters) != 1 or parameters[0][0] != "wait" or not _WAIT.fullmatch(parameters[0][1]):
        return None
    seconds = float(parameters[0][1])
    return seconds if seconds <= LONGEST_WAIT_S else None


class Head(HttpMiddleware):
    """Middleware that has HEAD answered as GET is, without the body."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        scope[WAITED] = True  # not among the times of requests

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
