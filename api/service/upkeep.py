"""What a store needs from time to time: deletions, expiry, abandoned and old jobs, files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection

from seqplan.api.service.periodic_thread import PeriodicThread
from seqplan.api.store.compaction import free_pages
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables import answers, expiry, jobs, leftovers
from seqplan.api.store.tables.expiry import Retention
from seqplan.api.store.tables.lengths import find_damaged

EVERY_S = 5.0
"""How often the store is looked at, if nothing calls for it earlier."""

EXPIRE_S = 30.0
"""How often steps expire, at most."""

REMOVE_AFTER_S = 3600.0
"""How long a service runs before it removes jobs: ranks have requested plans by then, and a clock
that was wrong at the start is right."""

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_TARGET_S = 0.02
"""Time that a batch of deletions may hold SQLite's writer, within a factor of about two."""

_PAGES = 512
"""Pages that are given back in one transaction, 2 MiB."""

_PASS_S = 1.0
"""Time after which expiry leaves a job for the next one, so that each gets its turn."""

_log = logging.getLogger("seqplan.service")


@dataclass(frozen=True)
class Keeping:
    """Retention times."""

    retention: Retention = field(default_factory=Retention)
    grace_days: float = leftovers.GRACE_DAYS
    """Days after which files of no data set are removed."""

    abandon_hours: float = 24.0
    """Hours without a request of any rank after which a job is planned no further."""

    job_days: float = 30.0
    """Days without a request of any rank after which a job that is not planned any further is
    removed; 0: never."""

    answer_hours: float = 24.0
    """Hours for which a repeated Idempotency-Key is answered as before."""


class Upkeep(PeriodicThread):
    """Keeps a store in order, in a thread; of services that share it one at a time does so.

    ``abandon`` and ``remove``: called with the id of a job that no rank has requested anything of.
    ``take_requests``: returns and resets when a rank has last requested something of each job.
    """

    def __init__(
        self,
        store: Store,
        keeping: Keeping,
        *,
        abandon: Callable[[str], None],
        remove: Callable[[str], object],
        take_requests: Callable[[], dict[str, float]],
    ) -> None:
        super().__init__("upkeep", EVERY_S, _log, "upkeep of the store failed; it is tried again")
        self._store = store
        self._keeping = keeping
        self._abandon = abandon
        self._remove = remove
        self._take_requests = take_requests
        self._expire_at = self._hourly_at = 0.0
        self._remove_at = time.monotonic() + REMOVE_AFTER_S
        self.jobs_by_state: dict[str, int] = {}
        """Jobs of the store in each state, as of the last look."""

    def look(self) -> None:
        """Do all that is due."""
        with self._store.reading() as connection:
            self.jobs_by_state = jobs.jobs_by_state(connection)
        if requests := self._take_requests():
            with self._store.writing(background=True) as connection:
                jobs.note_requests(connection, requests)
        with self._store.claim("upkeep") as claim:
            if claim is None:
                return  # another service does it
            self._finish_removals(claim)
            if time.monotonic() >= self._expire_at:
                self._expire(claim)
                self._expire_at = time.monotonic() + EXPIRE_S
            self._abandon_jobs()
            if time.monotonic() >= self._remove_at:
                self._remove_old_jobs()
                self._remove_at = time.monotonic() + _HOUR_S
            if time.monotonic() >= self._hourly_at:
                self._do_hourly(claim)
                self._hourly_at = time.monotonic() + _HOUR_S
            self._free_pages(claim)

    def _finish_removals(self, claim: Claim) -> None:
        with self._store.reading() as connection:
            pending = expiry.pending_removals(connection)
        for key in pending:
            self._in_batches(claim, partial(expiry.delete_batch, key=key))

    def _expire(self, claim: Claim) -> None:
        with self._store.reading() as connection:
            rows = [row for state in jobs.STATES for row in jobs.jobs_in_state(connection, state)]
            slowest = {row.id: expiry.slowest_step(connection, row) for row in rows}
        for row in rows:
            ends = time.monotonic() + _PASS_S

            def expire_some(
                connection: Connection, limit: int, row: JobRow = row, ends: float = ends
            ) -> bool:
                retention = self._keeping.retention
                more = expiry.expire_batch(connection, row, slowest[row.id], retention, limit)
                return more and time.monotonic() < ends

            if slowest[row.id] >= self._keeping.retention.measured_steps(row.world_size):
                self._in_batches(claim, expire_some)

    def _abandon_jobs(self) -> None:
        before = time.time() - self._keeping.abandon_hours * _HOUR_S
        with self._store.reading() as connection:
            rows = jobs.list_unfinished(connection)
        for row in rows:
            if row.asked_at < before and not self._stopping.is_set():
                self._abandon(row.id)

    def _remove_old_jobs(self) -> None:
        days = self._keeping.job_days
        if not days:
            return
        with self._store.reading() as connection:
            old = jobs.list_ended(connection, time.time() - days * _DAY_S)
        for job in old:
            if not self._stopping.is_set():
                self._remove(job)
                _log.warning("job %s: removed, as no rank has requested anything for days", job)
        if old:
            self.wake()

    def _do_hourly(self, claim: Claim) -> None:
        old = time.time() - self._keeping.answer_hours * _HOUR_S
        self._in_batches(claim, partial(answers.remove_old_answers, before=old))
        try:
            leftovers.remove_leftovers(self._store, self._keeping.grace_days)
        except OSError as error:  # they only take space
            _log.warning("files of no data set are not removed: %s", error)
        for line in find_damaged(self._store, self._stopping.is_set):
            _log.error("%s", line)

    def _free_pages(self, claim: Claim) -> None:
        while not self._stopping.is_set():
            with claim.writing(background=True) as connection:
                began = time.monotonic()
                more = free_pages(connection, _PAGES)
            if not more:
                return
            self._stopping.wait(time.monotonic() - began)

    def _in_batches(self, claim: Claim, work: Callable[..., bool]) -> None:
        """Call ``work`` with a ``limit`` of rows, a transaction each, until it returns False.

        Between two of them as much time passes as one took: whoever waits goes first.
        """
        rows = expiry.MOST_ROWS // 4
        while not self._stopping.is_set():
            with claim.writing(background=True) as connection:
                began = time.monotonic()
                more = work(connection, limit=rows)
            took = time.monotonic() - began
            if not more:
                return
            # Rows of plans may be megabytes, those of ranks bytes.
            rows = max(4, min(expiry.MOST_ROWS, int(rows * min(2.0, _TARGET_S / took))))
            self._stopping.wait(took)
