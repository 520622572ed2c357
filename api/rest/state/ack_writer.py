"""Acknowledgements: those that come while a transaction is underway share the next one.

A transaction is on disk before it is answered, which takes milliseconds; all ranks of a job
acknowledge a step at about the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy import Connection

from seqplan.api.rest.payloads.problems import Problem, not_found, rank_lost
from seqplan.api.service.service import Service
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.tables.acks import AckRow, acknowledge
from seqplan.api.store.tables.measurements import MeasurementRow, add_measurements
from seqplan.api.store.tables.plans import digests, last_planned

MOST_AT_ONCE = 4096
"""Requests that share a transaction."""


@dataclass(frozen=True)
class Acknowledged(AckRow):
    """A rank has done a step, by the plan with ``digest`` if given, in ``measured_ms``."""

    digest: str | None
    measured_ms: float | None


class AckQueue:
    """Writes acknowledgements, many at a time; used on the event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: list[tuple[list[Acknowledged], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        # Separate, so that it waits for no reader.
        self._threads = CapacityLimiter(1)

    async def put(self, acks: list[Acknowledged]) -> None:
        """Keep acknowledgements; return when they are on disk, together.

        ``Problem`` if one of them fits no plan: then none of them is kept; those of others go
        on.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((acks, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await written

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                waiting = self._waiting[:MOST_AT_ONCE]
                del self._waiting[:MOST_AT_ONCE]
                try:
                    requests = [acks for acks, _ in waiting]
                    problems = await run_sync(self._write, requests, limiter=self._threads)
                except Exception as error:
                    problems = [error] * len(waiting)
                for (_, written), problem in zip(waiting, problems, strict=True):
                    if written.done():  # the client has gone away
                        continue
                    if problem is None:
                        written.set_result(None)
                    else:
                        written.set_exception(problem)
        finally:
            self._writer = None

    def _write(self, requests: list[list[Acknowledged]]) -> list[Exception | None]:
        with self._service.store.writing() as connection:
            check = PlannedSteps(connection)
            problems = [check.first_problem(acks) for acks in requests]
            good = [
                ack
                for acks, problem in zip(requests, problems, strict=True)
                if problem is None
                for ack in acks
            ]
            acknowledge(connection, good)
            add_measurements(
                connection,
                [
                    MeasurementRow(ack.job, ack.step, ack.rank, ack.measured_ms)
                    for ack in good
                    if ack.measured_ms is not None and not check.has_expired(ack)
                ],
            )
        self._service.counts["acknowledgements"] += len(good)
        by_job: dict[str, list[tuple[int, int]]] = {}
        for ack in good:
            by_job.setdefault(ack.job, []).append((ack.step, ack.rank))
        for job, done in by_job.items():
            self._service.note_acknowledged(job)
            if planning := self._service.job(job):
                planning.news.add_acknowledged(done)
        return problems


class PlannedSteps:
    """Checks acknowledgements against the plans; looks up each job and step once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._find_job = cache(partial(get, connection, JobRow))
        self._find_digest = cache(lambda job, step: digests(connection, job, [step]).get(step))

    def first_problem(self, acks: Iterable[Acknowledged]) -> Exception | None:
        """Return the problem of the first acknowledgement that has one."""
        return next((problem for ack in acks if (problem := self.problem(ack))), None)

    def problem(self, ack: Acknowledged) -> Problem | None:
        """Return why an acknowledgement fits no plan.

        404 for the job, 422 for the rank, 409 for a lost rank, the step or the digest.
        """
        job, step = ack.job, ack.step
        row = self._find_job(job)
        if row is None:
            return not_found(f"job {job}")
        if ack.rank >= row.world_size:
            why = f"rank: {ack.rank} is not below {row.world_size}"
            return Problem(422, "invalid-request", why)
        if ack.rank in row.lost_ranks:
            return rank_lost(ack.rank)
        if self.has_expired(ack):
            return None  # every rank has acknowledged it: this one repeats it
        digest = self._find_digest(job, step)
        if digest is None:
            last = last_planned(self._connection, job)
            why = f"step {step} of job {job} has no plan; the last planned is {last}"
            return Problem(409, "not-planned", why, last_step=last)
        if ack.digest not in (None, digest):
            why = f"step {step} was planned as {digest}, not {ack.digest}"
            return Problem(409, "other-plan", why)
        return None

    def has_expired(self, ack: Acknowledged) -> bool:
        """Whether an acknowledgement is of a step of which nothing is kept any more."""
        row = self._find_job(ack.job)
        return row is not None and ack.step < row.kept_from
