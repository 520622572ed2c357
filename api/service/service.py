"""The engine behind the REST interface and the sidecar: a store, its jobs and its proposals."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from anyio import CapacityLimiter
from sqlalchemy import Connection

from seqplan.api.service.closed_loop import ClosedLoop
from seqplan.api.service.job_planner import PlanningJob
from seqplan.api.service.plan_summary import ReadyPlan
from seqplan.api.service.proposal_maker import ProposalMaker
from seqplan.api.service.upkeep import Keeping, Upkeep
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import JobRow, get, get_for_update
from seqplan.api.store.store import Store, removed_job
from seqplan.api.store.tables import jobs
from seqplan.api.store.tables.leftovers import put_back_arrays
from seqplan.api.store.tables.proposals import running_proposals
from seqplan.api.store.tables.revisions import NewRevision, Revision, add_revision
from seqplan.planner.workers.executor import ONE_WORKER, Workers

_TICK_S = 1.0
"""How often a shared store is searched for work that another service has left."""

_READERS = 2
"""Requests of readers that are worked on at a time: each takes a share of the interpreter."""

_log = logging.getLogger("seqplan.service")


@dataclass(frozen=True)
class Limits:
    """What one request, job or service may be.

    ``requests_a_second``: of one token, or of one address without tokens; None: as many as come.
    """

    request_bytes: int = 64 << 10
    body_bytes: int = 64 << 20
    upload_bytes: int = 1 << 30
    sequences: int = 200_000_000
    jobs: int = 64
    wait_s: float = 60.0
    requests_a_second: int | None = None


class Listener:
    """Callbacks, from any thread, for events of jobs; these do nothing."""

    def on_published(self, job: str, ready: ReadyPlan | None) -> None:
        """Handle a stored plan, ready to send; None: another change of the job."""

    def on_removed(self, job: str | None) -> None:
        """Handle the removal of a job; None: of any job."""


class Service:
    """Plans the jobs of a store.

    ``workers``: planners of each job.
    """

    def __init__(
        self,
        store: Store,
        *,
        workers: Workers = ONE_WORKER,
        limits: Limits | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.store = store
        self.limits = limits or Limits()
        self.counts: Counter[str] = Counter()
        self.revisions: Counter[tuple[str, str]] = Counter()
        """Revisions by this service since its start, by job and kind."""
        self.readers = CapacityLimiter(_READERS)
        """Threads that read for people; ranks have others."""
        self.proposals = ProposalMaker(store)
        self.workers = workers
        self._running: dict[str, PlanningJob] = {}
        self._asked: dict[str, float] = {}
        self._acknowledged: dict[str, float] = {}
        self.upkeep = Upkeep(
            store,
            keeping or Keeping(),
            abandon=self._abandon,
            remove=self.remove,
            take_requests=self._take_asked,
        )
        self.closed_loop = ClosedLoop(store, self.proposals.add, self.revise)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watch: threading.Thread | None = None
        self._listener: Listener = Listener()

    def start(self, listener: Listener | None = None) -> None:
        """Resume the unfinished jobs of the store, and watch for those that others begin."""
        if listener is not None:
            self._listener = listener
        self.proposals.start()
        try:
            put_back_arrays(self.store)
        except (OSError, StoreUnavailable) as error:
            _log.warning("arrays that were being removed are not put back: %s", error)
        try:
            self._take_up()
            late = False
        except StoreUnavailable as error:
            _log.warning("the store cannot be read yet, and is tried again: %s", error)
            late = True
        self.upkeep.start()
        self.closed_loop.start()
        if self.store.shared or late:
            self._watch = threading.Thread(target=self._watch_changes, name="notices", daemon=True)
            self._watch.start()

    def stop(self) -> None:
        """End planning; the store has all that was published."""
        self._stopping.set()
        self.closed_loop.stop()
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for planning in running:  # all of them first: each takes its time to end
            planning.news.stop()
        self.proposals.stop()
        self.upkeep.stop()
        for planning in running:
            planning.stop()
        if self._watch is not None:
            self._watch.join()

    def plan(self, row: JobRow) -> None:
        """Begin, or go on, to plan a job that is in the store; once is enough.

        A job that cannot be begun is settled as failed.
        """
        with self._lock:
            known = self._running.get(row.id)
            if self._stopping.is_set() or (known is not None and not known.ended):
                return
            self.upkeep.wake()
            planning = PlanningJob(
                self.store, row, self._on_published, ended=self._count_end, workers=self.workers
            )
            self._running[row.id] = planning
            try:
                planning.start()
                return
            except RuntimeError as error:  # no more threads
                failure = error
        planning.give_up(failure)

    def plan_again(self, row: JobRow) -> None:
        """Plan a job that had failed; its earlier planning may be about to end."""
        self._stop_planning(row.id)
        self.plan(row)

    def remove(self, job: str) -> bool:
        """Remove a job, at once for all readers; False if there is none.

        Its rows are deleted in the background.
        """
        if (row := self._read(job)) is None:
            return False
        with self._planning_stopped(row), self.store.writing() as connection:
            was_there = jobs.remove_job(connection, job)
        self._forget(job)
        self.upkeep.wake()
        return was_there

    def halt(self, job: str, state: str, *states: str) -> JobRow | None:
        """Plan a job no further, from one of ``states``; None if it is in another, or gone."""
        row = self._read(job)
        if row is None or row.state not in states:
            return None
        with self._planning_stopped(row), self.store.writing() as connection:
            stored = get_for_update(connection, JobRow, job)
            if stored is None or stored.state not in states:
                return None
            # Its days of retention count from now, however long the service was away.
            jobs.settle_job(connection, job, state=state, asked_at=int(time.time()))
        self._on_published(job, None)
        return replace(row, state=state)

    def revise(self, job: str, new: NewRevision) -> Revision | None:
        """Plan the unplanned steps of a job by this proposal, around slow ranks.

        Its ``gpus`` and ``max_len`` are those of the job's. None if the job is not being planned.
        """
        self._stop_planning(job)
        revision = None
        try:
            with self.store.writing() as connection:
                row = get_for_update(connection, JobRow, job)
                if row is not None and row.state == "planning":
                    revision = add_revision(connection, row, new)
        finally:
            row = self._read(job)
            if row is not None and row.state == "planning":
                self.plan(row)
        if revision is not None:
            text = "job %s: planned by proposal %s from step %d on (%s): %s"
            _log.info(text, job, new.proposal, revision.step, new.kind, new.reason)
            self.revisions[job, new.kind] += 1
        return revision

    def resume(self, connection: Connection, row: JobRow) -> JobRow:
        """Settle an abandoned job as planned again, in this transaction; see ``plan``."""
        now = int(time.time())
        jobs.settle_job(connection, row.id, state="planning", asked_at=now)
        return replace(row, state="planning", asked_at=now)

    def note_request(self, job: str) -> None:
        """Note that a rank of a job has requested something."""
        self._asked[job] = time.time()

    def note_acknowledged(self, job: str) -> None:
        """Note that a rank of a job has done a step."""
        self._asked[job] = self._acknowledged[job] = time.time()

    def last_acknowledgements(self) -> dict[str, float]:
        """Return when ranks last acknowledged to this service (Unix time), by job."""
        return dict(self._acknowledged)

    def _take_asked(self) -> dict[str, float]:
        requests, self._asked = self._asked, {}
        return requests

    def _abandon(self, job: str) -> None:
        if self.halt(job, "abandoned", "planning") is not None:
            _log.warning("job %s: abandoned, as no rank has requested anything for long", job)

    def _take_up(self) -> None:
        with self.store.reading() as connection:
            rows = jobs.list_unfinished(connection)
            waiting = running_proposals(connection)
        for key in waiting:
            if key not in self.proposals.progress:
                self.proposals.add(key)
        for row in rows:
            self.plan(row)

    def _watch_changes(self) -> None:
        while not self._stopping.is_set():
            listening = False
            try:
                for job in self.store.notices(_TICK_S):
                    if self._stopping.is_set():
                        return
                    if not listening:
                        listening = True
                        self._catch_up()
                    self._notice(job)
            except StoreUnavailable:
                self._stopping.wait(_TICK_S)
            except Exception:  # one job's error must not block the others
                _log.exception("a notice of another service could not be followed")
                self._stopping.wait(_TICK_S)

    def _catch_up(self) -> None:
        """Forget jobs that were removed without a notice."""
        with self._lock:
            known = list(self._running)
        for job in known:
            if self._read(job) is None:
                self._forget(job)
        self._listener.on_removed(None)

    def _notice(self, job: str | None) -> None:
        gone = None if job is None else removed_job(job)
        if gone is not None and self._read(gone) is None:
            self._forget(gone)
            return
        known = None if job is None else self.job(job)
        if job is None or known is None:
            self._take_up()
        if job is not None:
            if known is not None:
                known.news.look_again()
            self._listener.on_published(job, None)

    def _read(self, job: str) -> JobRow | None:
        with self.store.reading() as connection:
            return get(connection, JobRow, job)

    def _forget(self, job: str) -> None:
        """Stop planning a removed job, and release its waiting requests."""
        self._stop_planning(job)
        self._acknowledged.pop(job, None)
        for key in [key for key in self.revisions if key[0] == job]:
            del self.revisions[key]
        self._listener.on_removed(job)

    def _stop_planning(self, job: str) -> None:
        with self._lock:
            planning = self._running.pop(job, None)
        if planning is not None:
            planning.stop()

    @contextmanager
    def _planning_stopped(self, row: JobRow) -> Iterator[None]:
        """Stop planning a job before the block, and go on if the block fails."""
        self._stop_planning(row.id)
        try:
            yield
        except BaseException:
            if row.state == "planning":
                self.plan(row)
            raise

    def look_aheads(self) -> dict[str, int]:
        """Return how many steps are planned beyond the slowest rank of each job planned here."""
        with self._lock:
            running = sorted(self._running.items())
        return {job: planning.news.ahead for job, planning in running if not planning.ended}

    def job(self, key: str) -> PlanningJob | None:
        """Return the planning of a job, None for one that has none."""
        with self._lock:
            return self._running.get(key)

    def _count_end(self) -> None:
        self.counts["planning_ends"] += 1

    def faults(self) -> list[str]:
        """Return for each thread that has ended unexpectedly the effect and the fix."""
        with self._lock:
            running = sorted(self._running.items())
        lines = [
            f"job {job}: planning ended: {planning.fault}; POST /v1/jobs/{job}/restart"
            for job, planning in running
            if planning.ended and planning.fault is not None
        ]
        for thread, effect in (
            (self.proposals, "no proposals are made any more"),
            (self.upkeep, "rows of removed jobs are deleted no more"),
            (self.closed_loop, "jobs with refit are not revised any more"),
        ):
            lines += [f"{effect}; start the service again"] if thread.ended else []
        if self._watch is not None and not self._watch.is_alive() and not self._stopping.is_set():
            lines.append("notices of other services are not received; restart the service")
        return lines

    def _on_published(self, job: str, ready: ReadyPlan | None) -> None:
        if ready is None:
            self.upkeep.wake()  # for the jobs by state
        else:
            self.counts["publications"] += 1
            self.counts["planning_us"] += int(ready.planning_ms * 1000)
        self._listener.on_published(job, ready)
