"""Fast path for the acknowledgements that every rank sends in every step.

As with plans (``direct_plans``), the framework's routing and validation would take several times as
long as the rest. Anything else goes on to ``routes/acknowledgements``,
which describes it and words its errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.middleware.http_middleware import HttpMiddleware
from seqplan.api.rest.payloads.bodies import Ack
from seqplan.api.rest.payloads.plan_response import describe_json, send_bytes
from seqplan.api.rest.payloads.problems import Problem, answer_of
from seqplan.api.rest.state.ack_writer import Acknowledged, AckQueue
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.service_routes import ACKS

_PATH = re.compile(ACKS.format(job=r"([^/\0]+)"))
_LENGTH_DIGITS = 3
"""An acknowledgement has fewer than 1,000 bytes; limits of larger bodies are others' to check."""


class DirectAcks(HttpMiddleware):
    """Middleware that answers ``POST …/acks``."""

    def __init__(self, app: ASGIApp, acks: Callable[[], AckQueue]) -> None:
        super().__init__(app)
        self._acks = acks

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = None
        if scope["method"] == "POST" and not scope["query_string"]:
            match = _PATH.fullmatch(scope["path"])
        if match is None or not _is_short_json(scope["headers"]):
            await self._app(scope, receive, send)
            return
        message = await receive()
        ack = None
        if message["type"] == "http.request" and not message.get("more_body", False):
            ack = _read(match[1], message.get("body", b""))
        if ack is None:
            await self._app(scope, _after(message, receive), send)
            return
        try:
            await self._acks().put([ack])
        except Problem as error:
            await answer_of(error)(scope, receive, send)
            return
        body = b'{"step":%d,"rank":%d}' % (ack.step, ack.rank)
        await send_bytes(send, 200, describe_json(body), body)


def _is_short_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether headers declare a short JSON body."""
    json_type = short = False
    for name, value in headers:
        if name == b"content-type":
            json_type = value == b"application/json"
        elif name == b"content-length":
            short = len(value) <= _LENGTH_DIGITS
    return json_type and short


def _read(job: str, body: bytes) -> Acknowledged | None:
    """Read an acknowledgement; None for a body whose error the framework words."""
    try:
        ack = Ack.model_validate(parse_json(body.decode()))
    except ValueError:
        return None
    return Acknowledged(job, ack.step, ack.rank, ack.digest, ack.measured_ms)


def _after(message: Message, receive: Receive) -> Receive:
    """Give the message that was taken already, then those that follow."""
    taken = [message]

    async def again() -> Message:
        return taken.pop() if taken else await receive()

    return again
