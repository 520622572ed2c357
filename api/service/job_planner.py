"""One job's planning: a thread that keeps plans a few steps ahead of its slowest rank.

The thread sends batches to the planning processes, keeps each plan in the store and only then says
that it is there. All that it knows is in the store: begun again after any end, it goes on with the
first step that has no plan, and planning being a pure function the bytes are the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from seqplan.api.service.job_batches import job_sampler
from seqplan.api.service.plan_bytes import ReadyPlan
from seqplan.api.store import jobs, progress, schema
from seqplan.api.store.catalogue import get
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.jobs import StoredPlan
from seqplan.api.store.store import Claim, Store
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import SamplerState
from seqplan.planner.proposal.document import ProposalDocument
from seqplan.planner.step.assemble import PACKINGS
from seqplan.planner.workers.executor import EXECUTORS, Executor, open_executor
from seqplan.planner.workers.planned_step import Planned
from seqplan.plans.format.codec import from_json
from seqplan.plans.lint import lint

Published = Callable[[str, ReadyPlan | None], None]

_Due = tuple[Batch, SamplerState | None]
"""What to plan, and the sampler before it where it is one that draws."""

_RETRY_S = 0.5
_CLAIM_S = 1.0


class PlanningJob:
    """Plans the job of ``row`` until it ends, fails or is stopped.

    ``published`` is called, from the planning thread, whenever a plan is in the store (which it
    gets ready to send) or the job's state has changed (None). ``workers``: planners of this job;
    ``executor``: where they run, one of ``executor.EXECUTORS``.
    """

    def __init__(
        self,
        store: Store,
        row: dict[str, Any],
        published: Published,
        workers: int = 1,
        executor: str = EXECUTORS[0],
    ) -> None:
        self.id: str = row["id"]
        self._row = row
        self._store = store
        self._published = published
        self._workers = workers
        self._executor = executor
        self._changed = threading.Condition()
        self._stopped = False
        self._look = False
        self._done = [-1] * int(row["world_size"])
        self._next = 0
        self._thread = threading.Thread(target=self._run, name=f"job {self.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end, and nothing more comes of it."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End planning now; what is underway is planned again by the next one."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def acknowledged(self, step: int, rank: int) -> None:
        """A rank has done a step."""
        with self._changed:
            if rank < len(self._done):
                self._done[rank] = max(self._done[rank], step)
            self._changed.notify()

    def pushed(self) -> None:
        """The store has more batches of this job, or knows its last step."""
        with self._changed:
            self._changed.notify()

    def look_again(self) -> None:
        """Another service may have taken acknowledgements or batches of this job."""
        with self._changed:
            self._look = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._stopped:
            try:
                with self._store.claimed(f"job {self.id}") as claim:
                    if claim is not None:
                        self._plan_claimed(claim)
                        return
                self._wait(_CLAIM_S)  # another service plans it, and may end
            except StoreUnavailable:
                # Disk full or database locked: nothing is lost, and it may pass.
                self._wait(_RETRY_S)

    def _plan_claimed(self, claim: Claim) -> None:
        with self._store.reading() as connection:
            row = get(connection, schema.jobs, self.id)
        if row is None or row["state"] != "planning":
            return  # another service has brought it to its end, or removed it
        # While another service planned it, the job may have been removed and begun anew.
        with self._changed:
            self._row, self._done = row, [-1] * int(row["world_size"])
        try:
            self._plan_on(claim)
        except StoreUnavailable:
            raise
        except _Stopped:
            return
        except _Unplannable as failure:
            self._settle(claim, state="failed", failed_step=failure.step, error=str(failure))
        except Exception as error:  # ranks must never wait for a planner that is gone
            reason = f"{type(error).__name__}: {error}"
            self._settle(claim, state="failed", failed_step=self._next, error=reason)

    def _settle(self, claim: Claim, **values: Any) -> None:
        with claim.writing() as connection:
            jobs.settle_job(connection, self.id, **values)
        self._published(self.id, None)

    def _plan_on(self, claim: Claim) -> None:
        first = self._next = self._row["first_step"]
        with self._store.reading() as connection:
            proposal_row = get(connection, schema.proposals, self._row["proposal"])
            planned = jobs.planned_steps(connection, self.id)
        self._read_acknowledged()
        if proposal_row is None:
            raise _Stopped  # removed together with the job, just now
        self._next = planned[-1] + 1 if planned else first
        proposal = ProposalDocument.from_json(proposal_row["document"], "proposal")
        pool = open_executor(
            self._executor, proposal.to_json(), self._row["seed"], PACKINGS[0], self._workers
        )
        try:
            self._keep_ahead(claim, pool, proposal, planned)
        finally:
            pool.stop()

    def _keep_ahead(
        self, claim: Claim, pool: Executor, proposal: ProposalDocument, planned: list[int]
    ) -> None:
        models = proposal.cluster.models(proposal.profile)
        last = planned[-1] if planned else self._row["first_step"] - 1
        batches = self._batches(last, proposal.cluster.max_len)
        ahead = deque(planned)
        underway: deque[tuple[Future[Planned], _Due]] = deque()
        due = next(batches)
        while not self._stopped:
            if self._look:
                self._look = False
                self._read_acknowledged()
            slowest = min(self._done)
            while ahead and ahead[0] <= slowest:
                ahead.popleft()
            while isinstance(due, tuple) and len(ahead) < self._row["look_ahead"]:
                underway.append((pool.submit(due[0]), due))
                ahead.append(due[0].step)
                due = next(batches)
            if underway:
                future, (batch, state) = underway.popleft()
                self._next = batch.step
                self._keep(claim, batch.step, self._answer(batch.step, future), models, state)
            elif isinstance(due, int):
                self._settle(claim, state="planned", last_step=due)
                return
            else:
                self._wait_for_room(slowest, due is None)
                due = next(batches) if due is None else due

    def _read_acknowledged(self) -> None:
        with self._store.reading() as connection:
            found = progress.last_acknowledged(connection, self.id, len(self._done))
        with self._changed:
            for rank, step in enumerate(found):
                self._done[rank] = max(self._done[rank], step)

    def _batches(self, last: int, max_len: int) -> Iterator[_Due | int | None]:
        """What is due beyond step ``last``; None for nothing yet; at the end the last step."""
        if self._row["lengths"] is not None:
            sampler = job_sampler(self._store, self._row, max_len)
            with self._store.reading() as connection:
                known = jobs.known_state(connection, self._row, last + 1)
            for state, batch in sampler.resume(sampler.state_before(last + 1, known)):
                if state.step == self._row["steps"]:
                    break
                yield batch, state
            while True:
                yield self._row["steps"] - 1
        while True:
            with self._store.reading() as connection:
                row = get(connection, schema.jobs, self.id)
                found = jobs.batches_after(connection, self.id, last, self._row["look_ahead"])
            if row is None:
                raise _Stopped
            yield from ((batch, None) for batch in found)
            last = found[-1].step if found else last
            if not found:
                yield row["last_step"]

    def _answer(self, step: int, future: Future[Planned]) -> Planned:
        while not self._stopped:
            try:
                return future.result(timeout=0.2)
            except TimeoutError:
                if future.done():
                    raise
            except (ValueError, RuntimeError) as error:
                raise _Unplannable(step, str(error)) from error
        raise _Stopped

    def _keep(
        self, claim: Claim, step: int, planned: Planned, models: Any, state: SamplerState | None
    ) -> None:
        plan = from_json(planned.line)
        if broken := lint(plan, models):
            raise _Unplannable(step, f"the plan of step {step} breaks a rule: {broken[0]}")
        digest = planned.line[11:82]  # {"digest":"sha256:…" comes first in canonical JSON
        stored = StoredPlan(step, digest, planned.line)
        # Before it is published, so that ranks that wait are not kept by it.
        ready = ReadyPlan(stored, plan)
        with claim.writing() as connection:
            if not jobs.still_wanted(connection, self._row):
                raise _Stopped
            jobs.add_plan(connection, self.id, stored, planned.planning_ms, state)
        self._published(self.id, ready)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._stopped:
                self._changed.wait(seconds)

    def _wait_for_room(self, slowest: int, for_batches: bool) -> None:
        """Until the slowest rank has gone on, or there may be batches, or planning is to stop."""
        with self._changed:
            if for_batches:
                # Between the look into the store and this wait a push may have come.
                self._changed.wait(0.2)
            else:
                self._changed.wait_for(
                    lambda: self._stopped or self._look or min(self._done) > slowest
                )


class _Stopped(Exception):
    """The service ends, and the job goes on with the next one; or the job is removed."""


class _Unplannable(Exception):
    """A step that cannot be planned."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step
