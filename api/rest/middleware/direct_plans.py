"""Handing out plans and rank views: what every rank asks in every step.

These two requests are answered before the framework sees them, as its routing and validation take
several times as long as sending a few kilobytes does. What is not plainly such a request, and every
error, goes on to the routes of the same paths in ``plan_routes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from seqplan.api.rest.live.plan_waiters import Board
from seqplan.api.rest.wire.problems import Problem, not_found
from seqplan.api.service.plan_bytes import ReadyPlan

LONGEST_WAIT_S = 3600
"""What a request may say; the service waits as long as its own limit allows."""

WAITED = "seqplan.waited"
"""Set in a request's scope when its plan was not at hand."""

_PATH = re.compile(r"/v1/jobs/([^/]+)/plans/(0|[1-9][0-9]{0,14})(?:/ranks/(0|[1-9][0-9]{0,9}))?")
_WAIT = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")


class PlanAnswers:
    """ASGI middleware that answers ``…/plans/{step}`` and ``…/plans/{step}/ranks/{rank}``."""

    def __init__(self, app: ASGIApp, board: Callable[[], Board]) -> None:
        self._app = app
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and (match := _PATH.fullmatch(scope["path"]))
            and (wait := _wait(scope["query_string"])) is not None
        ):
            await self._app(scope, receive, send)
            return
        job, step = match[1], int(match[2])
        rank = None if match[3] is None else int(match[3])
        board = self._board()
        try:
            ready = board.at_hand(job, step)
            if ready is None:
                scope[WAITED] = True
                ready = await board.plan(job, step, wait)
            status, headers, body = answer(ready, rank, scope["headers"])
        except Problem:
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


Headers = list[tuple[bytes, bytes]]


def answer(
    ready: ReadyPlan | None, rank: int | None, asked: Iterable[tuple[bytes, bytes]]
) -> tuple[int, Headers, bytes]:
    """Status, headers and body for a plan, or for one rank's view of it.

    ``asked``: the request's headers, names in lower case. ``Problem`` for a rank outside the world.
    """
    if ready is None:
        return 204, [], b""
    if rank is not None and rank >= len(ready.views):
        raise not_found(f"rank {rank}: the job has ranks 0 to {len(ready.views) - 1}")
    tag = f'"{ready.digest}"'.encode()
    if any(name == b"if-none-match" and value == tag for name, value in asked):
        return 304, [(b"etag", tag)], b""
    body = ready.line if rank is None else ready.views[rank]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"etag", tag),
    ]
    return 200, headers, body


def _wait(query: bytes) -> float | None:
    """Seconds to wait; None for a query that the framework is to judge."""
    if not query:
        return 0.0
    asked = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if len(asked) != 1 or asked[0][0] != "wait" or not _WAIT.fullmatch(asked[0][1]):
        return None
    found = float(asked[0][1])
    return found if found <= LONGEST_WAIT_S else None
