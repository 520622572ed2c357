"""Who waits for which plan, and the plans that were asked for lately, ready to send."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.wire.problems import Problem, before_first_step, not_found
from seqplan.api.service.plan_bytes import ReadyPlan
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service
from seqplan.api.store import jobs, schema
from seqplan.api.store.catalogue import get

_KEPT_BYTES = 256 << 20
"""Plans and views kept in memory; a 1,024-GPU plan of 3.2M tokens takes about 2 MB."""


class Board:
    """Waits on the event loop for what the planning threads publish."""

    def __init__(self, service: Service, summaries: PlanSummaries) -> None:
        self._service = service
        self._summaries = summaries
        self._events: dict[str, asyncio.Event] = {}
        self._ready: OrderedDict[tuple[str, int], ReadyPlan] = OrderedDict()
        self._bytes = 0
        self._removals = 0
        self._loading: dict[tuple[str, int], asyncio.Task[ReadyPlan | None]] = {}
        self._loop = asyncio.get_running_loop()
        self.stopping = False
        service.on_published = self._from_thread
        service.on_removed = self._removed_from_thread

    def _from_thread(self, job: str, ready: ReadyPlan | None) -> None:
        self._loop.call_soon_threadsafe(self._published, job, ready)

    def _published(self, job: str, ready: ReadyPlan | None) -> None:
        if ready is not None:
            self._keep((job, ready.step), ready)
            self._summaries.keep(ready.digest, ready.summary)
        self.wake(job)

    def _removed_from_thread(self, job: str | None) -> None:
        self._loop.call_soon_threadsafe(self._removed, job)

    def _removed(self, job: str | None) -> None:
        """Forget the plans of a removed job, or of all jobs, and have its ranks look again."""
        self._removals += 1  # what is being loaded now is not kept
        for key in [key for key in self._ready if job in (None, key[0])]:
            self._bytes -= self._ready.pop(key).size
        for key in [key for key in self._loading if job in (None, key[0])]:
            del self._loading[key]
        for waiting in [job] if job is not None else list(self._events):
            self.wake(waiting)

    def at_hand(self, job: str, step: int) -> ReadyPlan | None:
        """The plan, where it is in memory; published plans never change."""
        found = self._ready.get((job, step))
        if found is not None:
            self._ready.move_to_end((job, step))
        return found

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
        """The plan, awaited for at most ``wait_s``; None when it is not there yet.

        Problems: 404 for the job or a step that has no batch, 410 after the last step, 424 when the
        step cannot be planned.
        """
        deadline = self._loop.time() + max(0.0, min(wait_s, self._service.limits.wait_s))
        while True:
            # Before the look, so that nothing published after it goes by unnoticed.
            event = self._events.setdefault(job, asyncio.Event())
            try:
                found = await self._look(job, step)
            except Problem:
                if not event.is_set() and self._events.get(job) is event:
                    del self._events[job]
                raise
            left = deadline - self._loop.time()
            if found is not None or left <= 0 or self.stopping:
                return found
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return None

    async def _look(self, job: str, step: int) -> ReadyPlan | None:
        if found := self.at_hand(job, step):
            return found
        key, removals = (job, step), self._removals
        if key not in self._loading:
            task = asyncio.create_task(run_in_threadpool(self._load, job, step))
            self._loading[key] = task
            task.add_done_callback(lambda _: self._loaded(key, task))
        found = await asyncio.shield(self._loading[key])
        if found is not None and removals == self._removals:
            self._keep(key, found)
        return found

    def _loaded(self, key: tuple[str, int], task: asyncio.Task[ReadyPlan | None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]

    def _keep(self, key: tuple[str, int], ready: ReadyPlan) -> None:
        if key not in self._ready:
            self._ready[key] = ready
            self._bytes += ready.size
        while self._bytes > _KEPT_BYTES and len(self._ready) > 1:
            self._bytes -= self._ready.popitem(last=False)[1].size

    def _load(self, job: str, step: int) -> ReadyPlan | None:
        with self._service.store.reading() as connection:
            stored = jobs.get_plan(connection, job, step)
            row = get(connection, schema.jobs, job)
            if stored is None and row is not None and row["lengths"] is None:
                pushed = jobs.last_pushed(connection, job)
                known = jobs.batches_after(connection, job, step - 1, 1)
                missing = step <= pushed and (not known or known[0].step != step)
            else:
                missing = False
        if row is None:
            raise not_found(f"job {job}")
        if stored is not None:
            return ReadyPlan(stored)
        if step < row["first_step"]:
            raise before_first_step(row, step)
        last = row["last_step"]
        if last is not None and step > last:
            raise Problem(410, "end-of-plans", f"job {job} ends with step {last}", last_step=last)
        if missing:
            raise not_found(f"batch of step {step} in job {job}")
        if row["state"] == "failed" and step >= row["failed_step"]:
            raise Problem(
                424,
                "planning-failed",
                f"step {row['failed_step']} of job {job} cannot be planned: {row['error']}",
                failed_step=row["failed_step"],
            )
        return None
