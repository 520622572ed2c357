"""One job's planning: a thread that keeps plans a few steps ahead of its slowest rank.

The thread sends batches to the planning processes, stores each plan and only then
announces it. Its whole state is in the store: begun again after any end, it goes on with the
first step that has no plan, and planning being a pure function the bytes are the same.

Here is the claim to the job, which one service has at a time, and trying again; ``look_ahead`` is
the planning itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from seqplan.api.service.look_ahead import JobNews, LookAhead, Published
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables.jobs import settle_failed
from seqplan.planner.workers.executor import ONE_WORKER, Workers
from seqplan.planner.workload import MOST_GPUS

_RETRY_S = 0.5
_CLAIM_S = 1.0

_log = logging.getLogger("seqplan.planning")


class PlanningJob:
    """Plans the job of ``row`` until it ends, fails or is stopped.

    ``published`` is called, from the planning thread, whenever a plan is in the store (which it
    gets ready to send) or the job's state has changed (None). ``workers``: planners of this job.
    ``ended`` is called when planning ends by an internal error. ``news``: its incoming events.
    """

    def __init__(
        self,
        store: Store,
        row: JobRow,
        published: Published,
        *,
        ended: Callable[[], None],
        workers: Workers = ONE_WORKER,
    ) -> None:
        self.id = row.id
        self.news = JobNews()
        self.fault: str | None = None
        """Why the thread ended while the job's state is still planning."""

        self._store = store
        self._published = published
        self._ended = ended
        self._workers = workers
        self._thread = threading.Thread(target=self._run, name=f"job {self.id}", daemon=True)

    def start(self) -> None:
        """Begin planning, in a separate thread."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end, and nothing more comes of it."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End planning now; unfinished batches are planned again by the next one."""
        self.news.stop()
        if self._thread.ident is not None:  # it could be begun
            self._thread.join()

    def _run(self) -> None:
        while not self.news.stopped:
            try:
                with self._store.claim(f"job {self.id}") as claim:
                    if claim is not None:
                        self._plan_claimed(claim)
                        return
                self.news.wait(_CLAIM_S)  # another service plans it, and may end
            except StoreUnavailable:
                # Disk full or database locked: nothing is lost, and it may pass.
                self.news.wait(_RETRY_S)
            except Exception as error:
                self.give_up(error)
                return

    def give_up(self, error: Exception) -> None:
        """Log the error of planning, and settle the job as failed.

        If the store rejects that, too, ``fault`` has the error.
        """
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        trace = None if isinstance(error, ValueError) else error  # whose message has the fix
        _log.error("job %s: planning ended: %s", self.id, reason, exc_info=trace)
        self.fault = reason
        self._ended()
        while not self.news.stopped:
            try:
                with self._store.claim(f"job {self.id}") as claim:
                    if claim is not None:  # otherwise another service plans it
                        with claim.writing() as connection:
                            settle_failed(connection, self.id, reason)
                self.fault = None
                self._published(self.id, None)
                return
            except StoreUnavailable:
                self.news.wait(_RETRY_S)
            except Exception as failure:
                _log.error("job %s: cannot be settled: %s", self.id, failure)
                return

    def _plan_claimed(self, claim: Claim) -> None:
        with self._store.reading() as connection:
            row = get(connection, JobRow, self.id)
        if row is None or row.state != "planning":
            return  # another service has brought it to its end, or removed it
        if row.world_size > MOST_GPUS:
            raise ValueError(
                f"{row.world_size} GPUs are more than the {MOST_GPUS} that plans are made for; "
                "remove the job"
            )
        # While another service planned it, the job may have been removed and begun anew.
        self.news.begin(row.world_size, row.lost_ranks)
        LookAhead(self._store, claim, row, self.news, self._published, self._workers).run()
