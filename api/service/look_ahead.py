"""Planning a job a few steps ahead of its slowest rank, by the service that has the claim to it.

Batches to plan are those that the job draws, or that its trainer pushes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from seqplan.api.service.plan_summary import ReadyPlan
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, StoreUnavailable
from seqplan.api.store.rows import JobRow, ProposalRow, get, read_slowdown
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables import acks, batches, jobs, plans
from seqplan.api.store.tables.lengths import open_lengths
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler, SamplerState
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.workers.executor import Workers, open_executor
from seqplan.planner.workers.planned_step import TimedPlan
from seqplan.planner.workers.pool import WorkerPool
from seqplan.plans.format.codec import from_json


@dataclass(frozen=True)
class PlannedBatch:
    """A batch to plan, and the sampler before it for a job that draws."""

    batch: Batch
    state: SamplerState | None


class Pending:
    """Nothing is due now; batches may still be pushed."""


@dataclass(frozen=True)
class EndOfData:
    """All is planned; ``step`` is the job's last."""

    step: int


class JobRemoved(Exception):
    """The store has removed the job, so that nothing of it is due."""


def due_batches(
    store: Store, row: JobRow, last: int, max_len: int
) -> Iterator[PlannedBatch | Pending | EndOfData]:
    """Yield batches beyond step ``last``, without end: after the last step ``EndOfData``.

    ``max_len``, errors: as for ``job_sampler``. ``JobRemoved``, ``StoreUnavailable``.
    """
    if row.lengths is not None:
        yield from _drawn(store, row, last, max_len)
    else:
        yield from _read_pushed(store, row, last)


def job_sampler(store: Store, row: JobRow, max_len: int) -> Sampler:
    """Open what the job of ``row`` draws from; ``max_len``: of its proposal.

    A job that continues another truncates as that one does. ``ArrayDamaged``, ``ArrayMissing`` and
    ``OSError`` for lengths that cannot be read.
    """
    assert row.lengths is not None
    assert row.tokens is not None
    return Sampler(open_lengths(store, row.lengths), row.tokens, row.max_len or max_len, row.seed)


def state_before(
    store: Store, row: JobRow, max_len: int, step: int, known: SamplerState
) -> SamplerState:
    """Return where the job's sampler is before ``step``; ``max_len``, errors: see ``job_sampler``.

    From ``known``, the nearest state that is kept with a plan (``plans.known_state``): the lengths
    are needed for other steps only. Outside any transaction, as it may take seconds.
    """
    if known.step == step:
        return known
    return job_sampler(store, row, max_len).state_before(step, known)


def _drawn(
    store: Store, row: JobRow, last: int, max_len: int
) -> Iterator[PlannedBatch | EndOfData]:
    assert row.steps is not None
    sampler = job_sampler(store, row, max_len)
    with store.reading() as connection:
        known = plans.read_latest_state(connection, row, last + 1)
    for state, batch in sampler.resume(sampler.state_before(last + 1, known)):
        if state.step == row.steps:
            break
        yield PlannedBatch(batch, state)
    while True:
        yield EndOfData(row.steps - 1)


def _read_pushed(
    store: Store, row: JobRow, last: int
) -> Iterator[PlannedBatch | Pending | EndOfData]:
    while True:
        with store.reading() as connection:
            stored = get(connection, JobRow, row.id)
            pushed = batches.batches_after(connection, row.id, last, row.look_ahead)
        if stored is None:
            raise JobRemoved
        yield from (PlannedBatch(batch, None) for batch in pushed)
        if pushed:
            last = pushed[-1].step
        else:
            yield Pending() if stored.last_step is None else EndOfData(stored.last_step)


_WORDED = (ValueError, OSError, ArrayMissing, ArrayDamaged)
"""Errors whose message has the fix: the log needs no trace of them."""

Published = Callable[[str, ReadyPlan | None], None]
"""Callback: plan stored, or None if the job's state changed."""

_log = logging.getLogger("seqplan.planning")

_ANSWER_S = 0.2
"""How often waiting for a plan looks whether planning is to stop."""


_PUSH_S = 0.2
"""How long to wait for batches before the store is read again."""


class JobNews:
    """Acknowledgements, pushed batches and the end, as they come; from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._done: list[int] = []
        self._look = False
        self.stopped = False
        self.ahead = 0
        """Steps planned beyond the slowest rank, as of the last look of the planning thread."""

    def stop(self) -> None:
        """Have planning end now."""
        with self._changed:
            self.stopped = True
            self._changed.notify()

    def add_acknowledged(self, done: Iterable[tuple[int, int]]) -> None:
        """Note the steps that ranks have done, as (step, rank)."""
        with self._changed:
            for step, rank in done:
                if rank < len(self._done):
                    self._done[rank] = max(self._done[rank], step)
            self._changed.notify()

    def add_batches(self) -> None:
        """Note that the store has more batches of the job, or knows its last step."""
        with self._changed:
            self._changed.notify()

    def look_again(self) -> None:
        """Note that another service may have taken acknowledgements or batches of the job."""
        with self._changed:
            self._look = True
            self._changed.notify()

    def begin(self, world_size: int, lost: Iterable[int] = ()) -> None:
        """Note how many ranks there are, and forget what they have done.

        Nothing waits for ``lost`` ranks. The job may be another of its name; what its ranks have
        done is read from the store next.
        """
        with self._changed:
            self._done = [-1] * world_size
            for rank in lost:
                self._done[rank] = sys.maxsize

    def take_look(self) -> bool:
        """Return whether to read acknowledgements from the store, and reset it."""
        look, self._look = self._look, False
        return look

    def slowest(self) -> int:
        """Return the last step that every rank has done, without lost ones; −1 for none."""
        return min(self._done)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until there is news."""
        with self._changed:
            if not self.stopped:
                self._changed.wait(seconds)

    def wait_for_room(self, slowest: int) -> None:
        """Wait until every rank is beyond ``slowest`` or planning must look or stop."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._look or self.slowest() > slowest)


@dataclass
class LookAhead:
    """Plans the job of ``row``, which ``claim`` allows, until it ends, fails or is stopped.

    ``workers``: planners of this job.
    """

    store: Store
    claim: Claim
    row: JobRow
    news: JobNews
    published: Published
    workers: Workers

    def __post_init__(self) -> None:
        self._next = self.row.first_step

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
            _log.error("job %s: planning failed: %s", self.row.id, reason, exc_info=trace)
            self._settle(state="failed", failed_step=self._next, error=reason)

    def _plan(self) -> None:
        with self.store.reading() as connection:
            proposal_row = get(connection, ProposalRow, self.row.proposal)
            planned = plans.list_planned_steps(connection, self.row.id)
        self._read_acknowledged()
        if proposal_row is None:
            raise JobRemoved  # the proposal goes only after it
        if planned:
            self._next = planned[-1] + 1
        proposal = ready_document(proposal_row)
        pool = open_executor(
            self.workers,
            proposal.to_json(),
            # Never exact: up to a minute for one step, for which ranks would wait.
            PlanningOptions(
                seed=self.row.seed,
                slowdown=read_slowdown(self.row.slowdown),
                robust=self.row.robust,
            ),
        )
        try:
            self._keep_ahead(pool, proposal, planned)
        finally:
            pool.stop()

    def _keep_ahead(self, pool: WorkerPool, proposal: Proposal, planned: list[int]) -> None:
        last = planned[-1] if planned else self.row.first_step - 1
        batches = due_batches(self.store, self.row, last, proposal.workload.max_len)
        ahead = deque(planned)
        underway: deque[tuple[PlannedBatch, Future[TimedPlan]]] = deque()
        coming = next(batches)
        while not self.news.stopped:
            if self.news.take_look():
                self._read_acknowledged()
            slowest = self.news.slowest()
            while ahead and ahead[0] <= slowest:
                ahead.popleft()
            self.news.ahead = len(ahead) - len(underway)
            while isinstance(coming, PlannedBatch) and len(ahead) < self.row.look_ahead:
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
                # Between the look into the store and this wait a push may have come.
                self.news.wait(_PUSH_S)
                coming = next(batches)
            else:
                self.news.wait_for_room(slowest)

    def _read_acknowledged(self) -> None:
        with self.store.reading() as connection:
            if not jobs.still_wanted(connection, self.row):
                raise JobRemoved  # or stopped, by another service
            last_steps = acks.last_acknowledged(connection, self.row.id, self.row.world_size)
        self.news.add_acknowledged((step, rank) for rank, step in enumerate(last_steps))

    def _answer(self, step: int, future: Future[TimedPlan]) -> TimedPlan:
        while not self.news.stopped:
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
        with self.claim.writing() as connection:
            if not jobs.still_wanted(connection, self.row):
                raise JobRemoved
            plans.add_plan(connection, self.row.id, stored, planned.planning_ms, due.state)
        self.published(self.row.id, ready)

    def _settle(self, **values: Any) -> None:
        with self.claim.writing() as connection:
            jobs.settle_job(connection, self.row.id, **values)
        self.published(self.row.id, None)


class _Stopped(Exception):
    """The service ends, and the job goes on with the next one."""


class _Unplannable(Exception):
    """A step that cannot be planned."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step
