"""Views from a planning service over HTTP, with the standard library alone.

``GET {base}/v1/jobs/{job}/plans/{step}/ranks/{rank}?wait=SECONDS``: 200 with the view as JSON and
the plan's digest as ETag; 204 when it is not planned yet; 410 with a problem whose type ends in
``end-of-plans`` after the last step; 4xx and 5xx with a problem (RFC 9457) otherwise.
``POST {base}/v1/jobs/{job}/acks`` with ``{"step", "rank", "digest"}`` and, where it was measured,
``"measured_ms"``: 2xx. ``POST …/acks/many`` says it for several ``"ranks"`` at once, with a list of
times.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.steps.http_connection import Answer, Connection, TooLarge

LONGEST_WAIT_S = 20.0
"""What one request asks the service to wait: below what proxies cut off."""

GRACE_S = 2.0
"""What a whole answer may take beyond the wait that was asked for."""

_RETRIED = (502, 503)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class HttpSource:
    """The views of ``job`` at the planning service ``base_url`` (http or https).

    ``token``: sent as bearer token. Lost connections, 502 and 503 are tried again, with growing
    pauses, until the time is up. ``ack_timeout_s``: for an acknowledgement. ``ValueError`` for a
    URL or token that cannot be used.
    """

    def __init__(
        self, base_url: str, job: str, token: str | None = None, *, ack_timeout_s: float = 10.0
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"planning service: wants http://HOST:PORT, got {base_url!r}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("planning service: the token has characters that no header can hold")
        self._job = f"{parts.path.rstrip('/')}/v1/jobs/{quote(job, safe='')}"
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._job}"
        self._headers = {"Accept": "application/json, application/problem+json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ack_timeout_s = ack_timeout_s
        self._closed = threading.Event()
        secure = parts.scheme == "https"
        # A request for a plan may wait long on its connection: acknowledgements have their own.
        self._plans = Connection(parts.hostname, parts.port, secure)
        self._acks = Connection(parts.hostname, parts.port, secure)

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        subject = f"{self._where}: step {step} of rank {rank}"
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            wait = max(0.0, min(deadline - time.monotonic(), LONGEST_WAIT_S))
            path = f"{self._job}/plans/{step}/ranks/{rank}?wait={wait:.3f}"
            begun = time.monotonic()
            answer = self._request(self._plans, "GET", path, subject, deadline, wait + GRACE_S)
            if answer.status == 200:
                return _view(answer, subject)
            if answer.status != 204:
                raise _refusal(answer, subject)
            if time.monotonic() >= deadline:
                raise PlanTimeout(f"{subject}: not planned within {timeout_s:.3g} s")
            # A service that does not wait must not be asked in a tight loop.
            if time.monotonic() - begun < wait / 2:
                self._pause(min(pause, deadline - time.monotonic()), subject)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        fields: dict[str, Any] = {"step": step, "rank": rank, "digest": digest}
        if measured_ms is not None:
            fields["measured_ms"] = measured_ms
        self._acknowledge("acks", f"acknowledging step {step} of rank {rank}", fields, f"{rank}")

    def acknowledge_all(
        self, step: int, digest: str | None, measured_ms: Sequence[float | None]
    ) -> None:
        fields: dict[str, Any] = {
            "step": step,
            "ranks": [*range(len(measured_ms))],
            "digest": digest,
        }
        if any(time_ms is not None for time_ms in measured_ms):
            fields["measured_ms"] = list(measured_ms)
        self._acknowledge("acks/many", f"acknowledging step {step} of all ranks", fields, "all")

    def _acknowledge(self, where: str, subject: str, fields: dict[str, Any], who: str) -> None:
        # The same key however often it is sent: a lost answer does not count twice.
        more = {
            "Content-Type": "application/json",
            "Idempotency-Key": f"{fields['step']}-{who}-{fields['digest']}",
        }
        path, subject = f"{self._job}/{where}", f"{self._where}: {subject}"
        deadline = time.monotonic() + self._ack_timeout_s
        body = json.dumps(fields).encode()
        answer = self._request(self._acks, "POST", path, subject, deadline, GRACE_S, body, more)
        if not 200 <= answer.status < 300:
            raise _refusal(answer, subject)

    def close(self) -> None:
        self._closed.set()
        self._plans.close()
        self._acks.close()

    def _request(
        self,
        connection: Connection,
        method: str,
        path: str,
        subject: str,
        deadline: float,
        timeout_s: float,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Return the first answer that is no passing trouble; ``PlanTimeout`` when time is up."""
        pause = _FIRST_PAUSE_S
        begun = time.monotonic()
        while True:
            if self._closed.is_set():
                raise PlanError(f"{subject}: the source is closed")
            try:
                answer = connection.request(
                    method, path, body, self._headers | (headers or {}), timeout_s
                )
                if answer.status not in _RETRIED:
                    return answer
                trouble = f"{answer.status} {answer.reason}"
            except TooLarge as error:
                raise PlanError(f"{subject}: {error}") from None
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
            if time.monotonic() >= deadline:
                raise PlanTimeout(
                    f"{subject}: no answer within {deadline - begun:.3g} s, at last {trouble}"
                )
            self._pause(min(pause, max(0.0, deadline - time.monotonic())), subject)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _pause(self, seconds: float, subject: str) -> None:
        if self._closed.wait(max(0.0, seconds)):
            raise PlanError(f"{subject}: the source is closed")


def _view(answer: Answer, subject: str) -> RankView:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{subject}: not JSON: {error}") from None
    # A newer service may say more than this reader knows.
    view = decode_view(document, strict=False, origin=subject)
    if answer.etag != f'"{view.digest}"':
        raise PlanError(f"{subject}: ETag {answer.etag} is not the view's digest {view.digest}")
    return view


def _refusal(answer: Answer, subject: str) -> Exception:
    problem: dict[str, Any] = {}
    if answer.kind.partition(";")[0].strip() == "application/problem+json":
        with suppress(ValueError, RecursionError):
            document = json.loads(answer.body)
            problem = document if isinstance(document, dict) else {}
    if answer.status == 410 and str(problem.get("type", "")).endswith("end-of-plans"):
        return EndOfPlans(f"{subject}: {problem.get('detail', 'after the last plan')}")
    title = problem.get("title", f"{answer.status} {answer.reason}")
    detail = f": {problem['detail']}" if problem.get("detail") else ""
    return PlanError(" ".join(f"{subject}: {title}{detail}".split()))
