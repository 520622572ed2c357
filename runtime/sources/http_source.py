"""Views from a planning service over HTTP, with the standard library alone.

``GET {base}/v1/jobs/{job}/plans/{step}/ranks/{rank}?wait=SECONDS``: 200 with the view as JSON and
the plan's digest as ETag; ``…/plans/{step}`` likewise with the whole plan; 204 when it is not
planned yet; 410 with a problem whose type ends in
``end-of-plans`` after the last step; 4xx and 5xx with a problem (RFC 9457) otherwise.
``POST {base}/v1/jobs/{job}/acks`` with ``{"step", "rank", "digest"}`` and, if it was measured,
``"measured_ms"``: 2xx. ``POST …/acks/many`` does so for several ``"ranks"`` at once, with a list of
times.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from seqplan.plans.plan import Plan
from seqplan.plans.service_routes import (
    ACKS,
    ACKS_MANY,
    JOB,
    PLAN,
    RETRIED,
    VIEW,
    check_seconds,
    fill_route,
    split_service_url,
)
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import RankView, place_view, rank_view
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.sources.acknowledgements import (
    OUTAGE_S,
    Acknowledgement,
    AcknowledgementFile,
    AcknowledgementSender,
    ServiceBehind,
    default_folder,
)
from seqplan.runtime.sources.http_connection import Connection, HttpResponse, TooLarge
from seqplan.runtime.sources.source import decode_plan, place_plan

LONGEST_WAIT_S = 20.0
"""Longest wait of one request, below the time-outs of proxies."""

GRACE_S = 2.0
"""Time of a whole response in addition to the requested wait."""

FAN_OUT_RANKS = 512
"""Ranks of a job from which ``fan_out.open_job`` lets rank 0 act for all."""

LAST_ACKNOWLEDGEMENTS_S = 5.0
"""Seconds for which closing sends acknowledgements that wait."""

WAIT_WITH_QUEUED_S = 1.0
"""Longest wait of a request while acknowledgements are queued: a plan may wait for them."""

WAIT_BEHIND_S = 0.2
"""Longest wait of a request while a restored service plans steps again that were done."""

_RENUMBERED = 2
"""Views that are requested of a step: the first may be that of another rank."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class _LostRank(PlanError):
    """A job is planned without this rank."""


class HttpSource:
    """The views of ``job`` at the planning service ``base_url`` (http or https).

    ``token``: sent as bearer token. Lost connections, 408, 425, 429, 500, 502, 503 and 504 are
    retried with growing pauses, or after ``Retry-After``, until the time is up. ``outage_s``:
    seconds that acknowledgements may wait for a service that is away, in a file of
    ``queue_folder`` (None: a folder of this user in the temporary folder). ``world_size``: ranks of
    the job, if known; plans made without lost ranks are placed on its ranks (``place_on_ranks``).
    ``ValueError`` for a URL or token that cannot be used, and for times that are no limits.
    """

    ahead_s = 600.0
    """Plans that a consumer fetches ahead, in seconds of predicted time."""

    def __init__(
        self,
        base_url: str,
        job: str,
        token: str | None = None,
        *,
        outage_s: float = OUTAGE_S,
        queue_folder: str | os.PathLike[str] | None = None,
        world_size: int | None = None,
    ) -> None:
        parts = split_service_url(base_url, token)
        check_seconds("outage_s", outage_s)
        assert parts.hostname is not None
        self._prefix, self._job = parts.path.rstrip("/"), job
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._prefix}"
        self._where = where + fill_route(JOB, job=job)
        self._headers = {"Accept": "application/json, application/problem+json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._closed = threading.Event()
        self._world_size = world_size
        self._planned_ranks: tuple[int, ...] | None = None  # by rank, if plans number others
        secure = parts.scheme == "https"
        # A request for a plan may wait long on its connection: acknowledgements use another.
        self._plans = Connection(parts.hostname, parts.port, secure)
        self._acks = Connection(parts.hostname, parts.port, secure)
        folder = default_folder() if queue_folder is None else Path(queue_folder)
        self._queue = AcknowledgementFile(folder, self._where)
        self._sender = AcknowledgementSender(self._post, _rejection, self._queue, outage_s)
        self._first_step: int | None = None  # that was requested here

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        self._note_step(step)
        lost: _LostRank | None = None
        for _ in range(_RENUMBERED):
            planned = self._number_as_planned(rank)
            subject = f"{self._where}: step {step} of rank {planned}"
            path = self._path(VIEW, step=step, rank=planned)
            try:
                view = _view(self._get_plan(path, subject, timeout_s), subject)
            except _LostRank as error:  # unless plans count another rank by this number
                lost = error
                break
            if self._world_size in (None, view.world_size):
                self._planned_ranks = None
            elif len(view.ranks_left) == self._world_size and view.experts is None:
                self._planned_ranks = view.ranks_left
            else:  # or of a service that does not state lost ranks
                break
            if self._number_as_planned(rank) == planned:
                return view if self._world_size is None else place_view(view, self._world_size)
        plan, digest = self.plan(step, timeout_s)
        if lost is not None and self._planned_ranks is None:
            raise lost
        return rank_view(plan, rank, digest=digest)

    def plan(self, step: int, timeout_s: float) -> tuple[Plan, str]:
        self._note_step(step)
        subject = f"{self._where}: step {step}"
        answer = self._get_plan(self._path(PLAN, step=step), subject, timeout_s)
        plan, digest = _plan(answer, subject)
        if self._world_size in (None, plan.world_size):
            return plan, digest
        placed = place_plan(plan, self._world_size, subject)
        self._planned_ranks = plan.ranks_left
        return placed, digest

    def _note_step(self, step: int) -> None:
        self._first_step = step if self._first_step is None else self._first_step

    def _path(self, route: str, **names: int) -> str:
        return self._prefix + fill_route(route, job=self._job, **names)

    def _get_plan(self, plan: str, subject: str, timeout_s: float) -> HttpResponse:
        """Return the answer with a plan or view, waiting for it to be planned."""
        check_seconds("timeout_s", timeout_s)
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            wait = max(0.0, min(deadline - time.monotonic(), self._longest_wait()))
            path = f"{plan}?wait={wait:.3f}"
            begun = time.monotonic()
            answer = self._request(path, subject, deadline, wait + GRACE_S)
            self._sender.send_queued()
            if answer.status == 200:
                return answer
            if answer.status != 204:
                raise _rejection(answer, subject)
            self._sender.repeat_last()
            if time.monotonic() >= deadline:
                raise PlanTimeout(f"{subject}: not planned within {timeout_s:.3g} s")
            # A service that does not wait must not be polled in a tight loop.
            if time.monotonic() - begun < wait / 2:
                self._pause(min(pause, deadline - time.monotonic()), subject)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _longest_wait(self) -> float:
        if self._sender.is_behind:
            return WAIT_BEHIND_S
        return WAIT_WITH_QUEUED_S if self._sender.has_queued else LONGEST_WAIT_S

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        rank = self._number_as_planned(rank)
        fields: dict[str, Any] = {"step": step, "rank": rank, "digest": digest}
        if measured_ms is not None:
            fields["measured_ms"] = measured_ms
        self._acknowledge(ACKS, f"acknowledging step {step} of rank {rank}", fields, f"{rank}")

    def acknowledge_all(
        self, step: int, digest: str | None, measured_ms: Mapping[int, float | None]
    ) -> None:
        ranks = sorted(measured_ms)
        planned = [self._number_as_planned(rank) for rank in ranks]
        fields: dict[str, Any] = {"step": step, "ranks": planned, "digest": digest}
        times = [measured_ms[rank] for rank in ranks]
        if any(time_ms is not None for time_ms in times):
            fields["measured_ms"] = times
        subject = f"acknowledging step {step} of {len(ranks)} ranks"
        self._acknowledge(ACKS_MANY, subject, fields, f"all-{crc32(repr(ranks).encode())}")

    def _number_as_planned(self, rank: int) -> int:
        return rank if self._planned_ranks is None else self._planned_ranks[rank]

    def _acknowledge(self, route: str, subject: str, fields: dict[str, Any], who: str) -> None:
        # The same key however often it is sent: a lost answer does not count twice.
        key = f"{fields['step']}-{who}-{fields['digest']}"
        path, subject = self._path(route), f"{self._where}: {subject}"
        self._sender.add(Acknowledgement(path, key, json.dumps(fields), subject), who)

    def _post(self, entry: Acknowledgement) -> HttpResponse:
        if entry in self._queue.adopted and json.loads(entry.body)["step"] >= (
            self._first_step or 0
        ):
            raise PlanError(
                f"{entry.subject}: is of a step that this process has yet to do, as of an earlier "
                "job of the same name"
            )
        more = {"Content-Type": "application/json", "Idempotency-Key": entry.key}
        answer = self._post_body(entry.path, entry.body, more)
        if answer.status == 409:
            self._catch_up(entry, _read_problem(answer))
        return answer

    def _post_body(self, path: str, body: str, headers: dict[str, str]) -> HttpResponse:
        return self._acks.request("POST", path, body.encode(), self._headers | headers, GRACE_S)

    def _catch_up(self, entry: Acknowledgement, problem: dict[str, Any]) -> None:
        """Acknowledge the last step of a restored service, so that it plans on.

        ``ServiceBehind`` if the step of ``entry`` had a plan, which the service lacks.
        """
        fields = json.loads(entry.body)
        last = problem.get("last_step")
        if not str(problem.get("type", "")).endswith("not-planned") or fields["digest"] is None:
            return
        if isinstance(last, int) and last >= 0:
            # Steps are done in order, so that this one is done, too.
            fields = {name: value for name, value in fields.items() if name != "measured_ms"}
            body = json.dumps(fields | {"step": last, "digest": None})
            self._post_body(entry.path, body, {"Content-Type": "application/json"})
        raise ServiceBehind(last if isinstance(last, int) else -1)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._plans.close()
        try:
            self._sender.close(LAST_ACKNOWLEDGEMENTS_S)
        finally:
            self._acks.close()

    def _request(self, path: str, subject: str, deadline: float, timeout_s: float) -> HttpResponse:
        """Return the first answer that is no passing trouble; ``PlanTimeout`` when time is up."""
        next_pause = _FIRST_PAUSE_S
        begun = time.monotonic()
        while True:
            pause, next_pause = next_pause, min(2 * next_pause, _LONGEST_PAUSE_S)
            if self._closed.is_set():
                raise PlanError(f"{subject}: the source is closed")
            try:
                answer = self._plans.request("GET", path, None, self._headers, timeout_s)
                if answer.status not in RETRIED:
                    return answer
                trouble = f"{answer.status} {answer.reason}"
                pause = max(pause, answer.retry_after_s)
            except TooLarge as error:
                raise PlanError(f"{subject}: {error}") from None
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
            if time.monotonic() >= deadline:
                waited_s = round(deadline - begun, 2)
                raise PlanTimeout(f"{subject}: no answer within {waited_s:g} s, at last {trouble}")
            self._pause(min(pause, max(0.0, deadline - time.monotonic())), subject)

    def _pause(self, seconds: float, subject: str) -> None:
        if self._closed.wait(max(0.0, seconds)):
            raise PlanError(f"{subject}: the source is closed")


def _view(answer: HttpResponse, subject: str) -> RankView:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{subject}: not JSON: {error}") from None
    # A newer service may send fields that this reader lacks.
    view = decode_view(document, strict=False, origin=subject)
    if answer.etag != f'"{view.digest}"':
        raise PlanError(f"{subject}: ETag {answer.etag} is not the view's digest {view.digest}")
    return view


def _plan(answer: HttpResponse, subject: str) -> tuple[Plan, str]:
    plan = decode_plan(answer.body, subject, strict=False)
    digest = json.loads(answer.body)["digest"]
    if answer.etag != f'"{digest}"':
        raise PlanError(f"{subject}: ETag {answer.etag} is not the plan's digest {digest}")
    return plan, digest


def _read_problem(answer: HttpResponse) -> dict[str, Any]:
    if answer.kind.partition(";")[0].strip() == "application/problem+json":
        with suppress(ValueError, RecursionError):
            document = json.loads(answer.body)
            return document if isinstance(document, dict) else {}
    return {}


def _rejection(answer: HttpResponse, subject: str) -> Exception:
    problem = _read_problem(answer)
    if answer.status == 410 and str(problem.get("type", "")).endswith("end-of-plans"):
        return EndOfPlans(f"{subject}: {problem.get('detail', 'after the last plan')}")
    kind = _LostRank if str(problem.get("type", "")).endswith("rank-lost") else PlanError
    title = problem.get("title", f"{answer.status} {answer.reason}")
    detail = f": {problem['detail']}" if problem.get("detail") else ""
    return kind(" ".join(f"{subject}: {title}{detail}".split()))
