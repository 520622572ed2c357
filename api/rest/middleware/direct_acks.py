"""Fast path for the acknowledgements that every rank sends in every step.

As with plans (``direct_plans``), the framework's routing and validation would take several times as
long as the rest. Anything else goes on to ``routes/acknowledgements``,
which describes it and words its errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seqplan.api.rest.payloads.fields import MOST
from seqplan.api.rest.payloads.problems import Problem, answer_of, store_unavailable
from seqplan.api.rest.state.ack_writer import Acknowledged, AckQueue
from seqplan.api.store.errors import StoreUnavailable
from seqplan.plans.service_routes import ACKS

_PATH = re.compile(ACKS.format(job=r"([^/\0]+)"))
_FIELDS = frozenset(("step", "rank", "digest"))
_WITH_TIME = _FIELDS | {"measured_ms"}
_LONGEST_MS = 1e15
_LENGTH_DIGITS = 3
"""An acknowledgement has fewer than 1,000 bytes; limits of larger bodies are others' to check."""


class DirectAcks:
    """ASGI middleware that answers ``POST …/acks``."""

    def __init__(self, app: ASGIApp, acks: Callable[[], AckQueue]) -> None:
        self._app = app
        self._acks = acks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = None
        if scope["type"] == "http" and scope["method"] == "POST":
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
        except StoreUnavailable as error:
            await store_unavailable(error)(scope, receive, send)
            return
        body = b'{"step":%d,"rank":%d}' % (ack.step, ack.rank)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


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
    """Read an acknowledgement; None for a body that the framework must validate."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if type(fields) is not dict or fields.keys() not in (_FIELDS, _WITH_TIME):
        return None
    step, rank, digest = fields["step"], fields["rank"], fields["digest"]
    time_ms = fields.get("measured_ms")
    plain = (
        type(step) is int
        and 0 <= step <= MOST
        and type(rank) is int
        and 0 <= rank <= MOST
        and (digest is None or (type(digest) is str and "\0" not in digest))
        and (time_ms is None or (type(time_ms) is float and 0 < time_ms <= _LONGEST_MS))
    )
    return Acknowledged(job, step, rank, digest, time_ms) if plain else None


def _after(message: Message, receive: Receive) -> Receive:
    """Give the message that was taken already, then those that follow."""
    taken = [message]

    async def again() -> Message:
        return taken.pop() if taken else await receive()

    return again
