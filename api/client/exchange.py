"""Retries, version check and errors of a call, without input and output."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar
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


class Exchange(Generic[T]):
    """A call under way: its headers, the pauses between its tries, and its result.

    Lost connections and statuses that pass are retried for ``retry_s`` seconds, with growing
    pauses; a POST has an idempotency key, so that it is done once.
    """

    def __init__(self, call: ServiceCall[T], service: str, retry_s: float) -> None:
        self._call, self._service = call, service
        self.headers = {} if call.body is None else {"Content-Type": call.content_type}
        if call.method == "POST":
            self.headers["Idempotency-Key"] = uuid4().hex
        self._ends = time.monotonic() + retry_s
        self._pause_s, self._tries = _FIRST_PAUSE_S, 0

    def find_pause(self, received: Received) -> float | None:
        """Return the seconds after which the call is sent again; None if it is not."""
        self._tries += 1
        passing = received.trouble is not None or received.status in RETRIED
        wait_s = max(self._pause_s, received.retry_after_s)
        if not passing or time.monotonic() + wait_s > self._ends:
            return None
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return wait_s

    def read(self, received: Received) -> T:
        """Return the result that the last response has. ``ServiceError``."""
        where = f"{self._service}{self._call.path}"
        if received.trouble is not None:
            raise ServiceError(f"{where}: no answer: {received.trouble}")
        if mismatch := describe_mismatch(received.version):
            raise ServiceError(f"{self._service}: {mismatch}")
        # The first of several DELETEs may have worked, and its response been lost.
        gone = self._call.method == "DELETE" and self._tries > 1 and received.status == 404
        if not (200 <= received.status < 300 or gone):
            raise _read_problem(where, received)
        try:
            return self._call.decode(received.body)
        except (ValueError, RecursionError) as error:
            text = f"{where}: response cannot be read: {error}"
            raise ServiceError(text, received.status) from None


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
