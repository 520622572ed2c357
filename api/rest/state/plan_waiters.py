"""Requests that wait for plans, and recently requested plans, ready to send."""

from __future__ import annotations

import asyncio

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy import Connection

from seqplan.api.rest.payloads.problems import Problem, before_first_step, not_found
from seqplan.api.service.plan_summary import PlanSummaries, ReadyPlan
from seqplan.api.service.service import Listener, Service
from seqplan.api.store.lru import Lru
from seqplan.api.store.rows import JobRow, get, get_for_update
from seqplan.api.store.tables import batches, plans
from seqplan.api.store.tables.jobs import list_unfinished

_KEPT_BYTES = 256 << 20
"""Plans and views kept in memory; a 1,024-GPU plan of 3.2M tokens takes about 2 MB."""

_LOADING = 8
"""Plans read from the store at a time."""


class PlanWaiters(Listener):
    """Waits on the event loop for what the planning threads publish; the service's listener."""

    def __init__(self, service: Service, summaries: PlanSummaries) -> None:
        self._service = service
        self._summaries = summaries
        self._events: dict[str, asyncio.Event] = {}
        self._ready: Lru[tuple[str, int], ReadyPlan] = Lru(_KEPT_BYTES, lambda ready: ready.size)
        self._removals = 0
        self._loading: dict[tuple[str, int], asyncio.Task[ReadyPlan | None]] = {}
        self._writing: dict[tuple[str, int], asyncio.Task[ReadyPlan]] = {}
        self._given: dict[str, tuple[int, int]] = {}  # step and views given of it, by job
        self._ahead: set[asyncio.Task[ReadyPlan]] = set()
        self._loop = asyncio.get_running_loop()
        # Separate, so that ranks do not wait for dashboard pages.
        self._threads = CapacityLimiter(_LOADING)
        self.stopping = False

    def on_published(self, job: str, ready: ReadyPlan | None) -> None:
        """Hand a plan out, or have the job's ranks look again (None). From any thread."""
        self._loop.call_soon_threadsafe(self._on_published, job, ready)

    def _on_published(self, job: str, ready: ReadyPlan | None) -> None:
        if ready is not None:
            self._ready.put((job, ready.step), ready)
            self._summaries.keep(ready.digest, ready.summary)
        self.wake(job)

    def on_removed(self, job: str | None) -> None:
        """Forget the plans of a removed job, or of all jobs (None). From any thread."""
        self._loop.call_soon_threadsafe(self._on_removed, job)

    def _on_removed(self, job: str | None) -> None:
        self._removals += 1  # plans that are loading now are not kept
        self._forget(job)
        for key in [key for key in self._loading if job in (None, key[0])]:
            del self._loading[key]
        for waiting in [job] if job is not None else list(self._events):
            self.wake(waiting)

    def _forget(self, job: str | None) -> None:
        self._given = {key: of for key, of in self._given.items() if job not in (None, key)}
        self._ready.drop(lambda key: job in (None, key[0]))

    def note_request(self, job: str) -> None:
        """Note that a rank of a job has requested something."""
        self._service.note_request(job)

    def at_hand(self, job: str, step: int) -> ReadyPlan | None:
        """Return the plan if it is in memory; published plans never change."""
        return self._ready.get((job, step))

    def wake(self, job: str) -> None:
        """Have everyone who waits for the job look again."""
        if event := self._events.pop(job, None):
            event.set()

    def stop(self) -> None:
        """Answer those who wait, so that the service can end."""
        self.stopping = True
        for job in list(self._events):
            self.wake(job)

    async def plan(self, job: str, step: int, wait_s: float) -> ReadyPlan | None:
        """Return the plan, awaited for at most ``wait_s``; None when it is not there yet.

        Problems: 404 for the job or a step that has no batch, 410 after the last step, 424 when the
        step cannot be planned.
        """
        deadline = self._loop.time() + max(0.0, min(wait_s, self._service.limits.wait_s))
        while True:
            # Before the look, so that nothing published after it goes by unnoticed.
            event = self._events.setdefault(job, asyncio.Event())
            try:
                ready = await self._look(job, step)
            except Problem:
                if not event.is_set() and self._events.get(job) is event:
                    del self._events[job]
                raise
            left = deadline - self._loop.time()
            if ready is not None or left <= 0 or self.stopping:
                return ready
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return None

    async def _look(self, job: str, step: int) -> ReadyPlan | None:
        if ready := self.at_hand(job, step):
            return ready
        key, removals = (job, step), self._removals
        if key not in self._loading:
            task = asyncio.create_task(run_sync(self._load, job, step, limiter=self._threads))
            self._loading[key] = task
            task.add_done_callback(lambda _: self._on_loaded(key, task))
        ready = await asyncio.shield(self._loading[key])
        if ready is not None and removals == self._removals:
            self._ready.put(key, ready)
        return ready

    async def add_views(self, job: str, ready: ReadyPlan) -> ReadyPlan:
        """Return the plan with its views, written once for all ranks that wait for them."""
        if ready.views is not None:
            return ready
        key, removals = (job, ready.step), self._removals
        if key not in self._writing:
            self._writing[key] = asyncio.create_task(
                run_sync(ready.with_views, limiter=self._threads)
            )
            self._writing[key].add_done_callback(lambda _: self._writing.pop(key, None))
        complete = await asyncio.shield(self._writing[key])
        if complete.digest != ready.digest:  # of an earlier job of this name
            return await run_sync(ready.with_views, limiter=self._threads)
        if removals == self._removals:
            self._ready.put(key, complete)
        return complete

    def note_view(self, job: str, ready: ReadyPlan) -> None:
        """Note that a rank has its view; after the last one those of the next step are written.

        Ranks request them when they have done this step: then they do not wait for the writing.
        """
        step, given = self._given.get(job, (ready.step, 0))
        given = given + 1 if step == ready.step else 1
        self._given[job] = (ready.step, given)
        left = ready.world_size - len(ready.lost_ranks)
        if given == left and (following := self.at_hand(job, ready.step + 1)):
            task = asyncio.create_task(self.add_views(job, following))
            self._ahead.add(task)
            task.add_done_callback(self._ahead.discard)

    def _on_loaded(self, key: tuple[str, int], task: asyncio.Task[ReadyPlan | None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]

    def _load(self, job: str, step: int) -> ReadyPlan | None:
        with self._service.store.reading() as connection:
            stored = plans.get_plan(connection, job, step)
            row = get(connection, JobRow, job)
            if row is None:
                # The notice of it may be on its way: the next request must not get plans of it.
                self._loop.call_soon_threadsafe(self._forget, job)
                raise not_found(f"job {job}")
            pushed = stored is None and row.lengths is None
            passed_over = (
                pushed and step >= row.kept_from and _is_passed_over(connection, job, step)
            )
        if stored is not None:
            return ReadyPlan(stored)
        if problem := _never(row, step, passed_over):
            raise problem
        if row.state == "abandoned":
            self._take_back(job)
        return None

    def _take_back(self, job: str) -> None:
        """Plan an abandoned job again after a rank's request for an unplanned step."""
        with self._service.store.writing() as connection:
            row = get_for_update(connection, JobRow, job)
            if row is None or row.state != "abandoned":
                return
            active = len(list_unfinished(connection))
            if active >= self._service.limits.jobs:
                why = f"job {job} was abandoned, and {active} others are being planned"
                raise Problem(503, "too-many-jobs", why)
            row = self._service.resume(connection, row)
        self._service.plan(row)


def _is_passed_over(connection: Connection, job: str, step: int) -> bool:
    """Whether later batches were pushed, so that none of this step comes any more."""
    if step > batches.last_pushed(connection, job):
        return False
    following = batches.batches_after(connection, job, step - 1, 1)
    return not following or following[0].step != step


def _never(row: JobRow, step: int, passed_over: bool) -> Problem | None:
    """Return why a step without plan gets none, or None if it may get one."""
    if step < row.first_step:
        return before_first_step(row, step)
    if step < row.kept_from:
        return Problem(
            410,
            "plan-expired",
            f"the plan of step {step} of job {row.id} has expired; steps from {row.kept_from} on "
            f'are kept. Begin a job that goes on from there: "continues": {{"job": "{row.id}", '
            f'"step": {step}}}',
            kept_from=row.kept_from,
        )
    last = row.last_step
    if last is not None and step > last:
        return Problem(410, "end-of-plans", f"job {row.id} ends with step {last}", last_step=last)
    if passed_over:
        return not_found(f"batch of step {step} in job {row.id}")
    if row.state == "failed" and row.failed_step is not None and step >= row.failed_step:
        why = f"step {row.failed_step} of job {row.id} cannot be planned: {row.error}"
        return Problem(424, "planning-failed", why, failed_step=row.failed_step)
    if row.state == "stopped":
        why = f"job {row.id} was stopped; POST /v1/jobs/{row.id}/restart plans it further"
        return Problem(424, "job-stopped", why)
    return None
