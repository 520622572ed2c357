"""Planning a job a few steps ahead of its slowest rank, by the service that has the claim to it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from seqplan.api.service.job_batches import (
    EndOfData,
    JobRemoved,
    Pending,
    PlannedBatch,
    due_batches,
)
from seqplan.api.service.job_news import JobNews
from seqplan.api.service.plan_bytes import ReadyPlan
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, StoreUnavailable
from seqplan.api.store.rows import JobRow, ProposalRow, get, read_slowdown
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables import acks, jobs, plans
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.workers.executor import Executor, Workers, open_executor
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.plans.format.codec import from_json

_WORDED = (ValueError, OSError, ArrayMissing, ArrayDamaged)
"""Errors whose message has the fix: the log needs no trace of them."""

Published = Callable[[str, ReadyPlan | None], None]
"""Callback: plan stored, or None if the job's state changed."""

_log = logging.getLogger("seqplan.planning")

_ANSWER_S = 0.2
"""How often waiting for a plan looks whether planning is to stop."""


class LookAhead:
    """Plans the job of ``row``, which ``claim`` allows, until it ends, fails or is stopped.

    ``workers``: planners of this job.
    """

    def __init__(
        self,
        store: Store,
        claim: Claim,
        row: JobRow,
        *,
        news: JobNews,
        published: Published,
        workers: Workers,
    ) -> None:
        self._store = store
        self._claim = claim
        self._row = row
        self._news = news
        self._published = published
        self._workers = workers
        self._next = row.first_step

    def run(self) -> None:
        """Plan, and write into the store how it ended. ``StoreUnavailable``: begin again later."""
        try:
            self._plan()
        except StoreUnavailable:
            raise
        except (_Stopped, JobRemoved):
            return
        except _Unplannable as failure:
            self._settle(state="failed", failed_step=failure.step, error=str(failure))
        except Exception as error:  # ranks must never wait for a planner that is gone
            reason = f"{type(error).__name__}: {error}"
            trace = None if isinstance(error, _WORDED) else error
            _log.error("job %s: planning failed: %s", self._row.id, reason, exc_info=trace)
            self._settle(state="failed", failed_step=self._next, error=reason)

    def _plan(self) -> None:
        with self._store.reading() as connection:
            proposal_row = get(connection, ProposalRow, self._row.proposal)
            planned = plans.list_planned_steps(connection, self._row.id)
        self._read_acknowledged()
        if proposal_row is None:
            raise JobRemoved  # the proposal goes only after it
        if planned:
            self._next = planned[-1] + 1
        proposal = ready_document(proposal_row)
        pool = open_executor(
            self._workers,
            proposal.to_json(),
            # Never exact: up to a minute for one step, for which ranks would wait.
            PlanningOptions(
                seed=self._row.seed,
                slowdown=read_slowdown(self._row.slowdown),
                robust=self._row.robust,
            ),
        )
        try:
            self._keep_ahead(pool, proposal, planned)
        finally:
            pool.stop()

    def _keep_ahead(self, pool: Executor, proposal: Proposal, planned: list[int]) -> None:
        last = planned[-1] if planned else self._row.first_step - 1
        batches = due_batches(self._store, self._row, last, proposal.workload.max_len)
        ahead = deque(planned)
        underway: deque[tuple[PlannedBatch, Future[TimedPlan]]] = deque()
        coming = next(batches)
        while not self._news.stopped:
            if self._news.take_look():
                self._read_acknowledged()
            slowest = self._news.slowest()
            while ahead and ahead[0] <= slowest:
                ahead.popleft()
            self._news.ahead = len(ahead) - len(underway)
            while isinstance(coming, PlannedBatch) and len(ahead) < self._row.look_ahead:
                underway.append((coming, pool.submit(coming.batch)))
                ahead.append(coming.batch.step)
                coming = next(batches)
            if underway:
                due, future = underway.popleft()
                self._next = due.batch.step
                self._keep(due, self._answer(due.batch.step, future))
            elif isinstance(coming, EndOfData):
                self._settle(state="planned", last_step=coming.step, failed_step=None, error=None)
                return
            elif isinstance(coming, Pending):
                self._news.wait_for_batches()
                coming = next(batches)
            else:
                self._news.wait_for_room(slowest)

    def _read_acknowledged(self) -> None:
        with self._store.reading() as connection:
            if not jobs.still_wanted(connection, self._row):
                raise JobRemoved  # or stopped, by another service
            last_steps = acks.last_acknowledged(connection, self._row.id, self._row.world_size)
        self._news.add_done(last_steps)

    def _answer(self, step: int, future: Future[TimedPlan]) -> TimedPlan:
        while not self._news.stopped:
            try:
                return future.result(timeout=_ANSWER_S)
            except TimeoutError:
                if future.done():
                    raise
            except (ValueError, RuntimeError) as error:
                raise _Unplannable(step, str(error)) from error
        raise _Stopped

    def _keep(self, due: PlannedBatch, planned: TimedPlan) -> None:
        step, plan = due.batch.step, from_json(planned.line)
        stored = StoredPlan(step, planned.digest, planned.line)
        # Before it is published, so that ranks that wait are not kept by it.
        ready = ReadyPlan(stored, plan, planning_ms=planned.planning_ms)
        with self._claim.writing() as connection:
            if not jobs.still_wanted(connection, self._row):
                raise JobRemoved
            plans.add_plan(connection, self._row.id, stored, planned.planning_ms, due.state)
        self._published(self._row.id, ready)

    def _settle(self, **values: Any) -> None:
        with self._claim.writing() as connection:
            jobs.settle_job(connection, self._row.id, **values)
        self._published(self._row.id, None)


class _Stopped(Exception):
    """The service ends, and the job goes on with the next one."""


class _Unplannable(Exception):
    """A step that cannot be planned."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step
