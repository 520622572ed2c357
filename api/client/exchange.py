"""Retries, version check and errors of a call, without input and output."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from seqplan.api.client.call import ServiceCall
from seqplan.plans.service_routes import RETRIED, describe_mismatch

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_TYPES = "urn:seqplan:problem:"


class ServiceError(ValueError):
    """A response that is an error: its ``status`` and ``kind``, as ``not-found``.

    ``status`` is None if there was no usable response: unreachable, another version.
    """

    def __init__(self, message: str, status: int | None = None, kind: str | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.status, self.kind = status, kind


class Received(NamedTuple):
    """A response; ``trouble``: why there is none, and then all else is empty."""

    status: int
    reason: str
    version: str | None
    retry_after_s: float
    body: bytes
    trouble: str | None = None


@dataclass(frozen=True)
class Send:
    """The request is to be sent."""

    headers: dict[str, str]


@dataclass(frozen=True)
class Pause:
    """Nothing is to be done for some seconds."""

    seconds: float


Exchange = Generator[Send | Pause, Received, T]


def exchange(call: ServiceCall[T], service: str, retry_s: float) -> Exchange[T]:
    """Yield the steps of a call, receive its responses and return its result.

    Lost connections and statuses that pass are retried for ``retry_s`` seconds, with growing
    pauses; a POST has an idempotency key, so that it is done once. ``ServiceError``.
    """
    headers = {} if call.body is None else {"Content-Type": call.content_type}
    if call.method == "POST":
        headers["Idempotency-Key"] = uuid4().hex
    ends = time.monotonic() + retry_s
    pause, tries = _FIRST_PAUSE_S, 0
    while True:
        received = yield Send(headers)
        tries += 1
        passing = received.trouble is not None or received.status in RETRIED
        wait = max(pause, received.retry_after_s)
        if not passing or time.monotonic() + wait > ends:
            break
        yield Pause(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    where = f"{service}{call.path}"
    if received.trouble is not None:
        raise ServiceError(f"{where}: no answer: {received.trouble}")
    if mismatch := describe_mismatch(received.version):
        raise ServiceError(f"{service}: {mismatch}")
    # The first of several DELETEs may have worked, and its response been lost.
    gone = call.method == "DELETE" and tries > 1 and received.status == 404
    if not (200 <= received.status < 300 or gone):
        raise _read_problem(where, received)
    try:
        return call.decode(received.body)
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"{where}: response cannot be read: {error}", received.status) from None


def _read_problem(where: str, received: Received) -> ServiceError:
    problem: Any = None
    with suppress(ValueError, RecursionError):
        problem = json.loads(received.body)
    problem = problem if isinstance(problem, dict) else {}
    detail = problem.get("detail", received.reason)
    if received.status == 401:
        detail = f"{detail}. Make one with seqplan serve --add-token NAME"
    kind = str(problem["type"]).removeprefix(_TYPES) if "type" in problem else None
    return ServiceError(f"{where}: {received.status}: {detail}", received.status, kind)
