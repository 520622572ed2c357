"""Jobs whose costs follow their measured times: refit, next proposal, roll-back.

A thread looks at the jobs with ``refit``. If their times leave the profile's error, or a rank's
speed changes, later steps get another proposal or factors of slow ranks: a revision. If steps take
longer for their work after it than before, the job goes back to the revision before.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from seqplan.api.service.measured_steps import MeasuredStep, find_correction, measure_loss
from seqplan.api.service.periodic_thread import PeriodicThread
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import JobRow, ProposalRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import measurements, plans, revisions
from seqplan.api.store.tables.jobs import list_unfinished
from seqplan.api.store.tables.profiles import put_profile
from seqplan.api.store.tables.proposals import put_proposal, ready_document
from seqplan.api.store.tables.revisions import NewRevision, Revision
from seqplan.costs.fit.refit import RefittedProfile, write_refit
from seqplan.costs.profile import Profile
from seqplan.planner.balance.slow_ranks import WINDOW, SlowRanks
from seqplan.plans.format.codec import from_json

JUDGED = 16
"""Measured steps before and after a revision that are compared."""

_LATE = 16
"""Steps after which a step that is not measured on all ranks is left out."""

_EVERY_S = 1.0
_PAUSE = 4 * WINDOW
"""Steps without a revision after a roll-back, doubled at each."""

_log = logging.getLogger("seqplan.refit")


Revise = Callable[[str, NewRevision], Revision | None]
"""Plans a job's further steps by another proposal; None if it is planned no more."""


class ClosedLoop(PeriodicThread):
    """A thread that revises the jobs of a store; of services that share it one does so.

    ``make``: called with the id of a proposal to make; ``revise``: see ``Service.revise``.
    """

    def __init__(self, store: Store, make: Callable[[str], None], revise: Revise) -> None:
        super().__init__(
            "refits", _EVERY_S, _log, "a look at jobs with refit failed; it is tried again"
        )
        self._store, self._make, self._revise = store, make, revise
        self._loops: dict[str, _JobLoop] = {}

    def look(self) -> None:
        """Take up the jobs with ``refit``, for as long as no other service does."""
        with self._store.claim("refits") as claim:
            while claim is not None and not self._stopping.wait(_EVERY_S):
                self._look_at_jobs()

    def _look_at_jobs(self) -> None:
        """Read the new times of each job with ``refit``, and revise those that need it."""
        with self._store.reading() as connection:
            rows = {row.key: row for row in list_unfinished(connection) if row.refit}
        self._loops = {key: loop for key, loop in self._loops.items() if key in rows}
        for key, row in rows.items():
            try:
                if key not in self._loops:
                    with self._store.reading() as connection:
                        known = revisions.list_revisions(connection, row)
                    self._loops[key] = _JobLoop(self._store, row, known, self._make, self._revise)
                self._loops[key].look()
            except StoreUnavailable:
                raise
            except Exception:  # one job's error must not block the others
                _log.exception("job %s: its measured times cannot be used", row.id)


class _JobLoop:
    """The measured steps of one job, and what follows from them.

    ``known``: its revisions, some of which another service may have made.
    """

    def __init__(
        self,
        store: Store,
        row: JobRow,
        known: Sequence[Revision],
        make: Callable[[str], None],
        revise: Revise,
    ) -> None:
        self._store, self._make, self._revise = store, make, revise
        self._id, self._world_size = row.id, row.world_size
        self._steps: deque[MeasuredStep] = deque(maxlen=4 * WINDOW)
        self._slow_ranks = SlowRanks(row.world_size, known[-1].slowdown)
        self._next = row.first_step
        rollbacks = [revision for revision in known if revision.kind == "rollback"]
        self._pause = _PAUSE * 2 ** len(rollbacks)
        self._due = row.first_step + WINDOW  # the first step before which none is begun
        if rollbacks:
            self._due = rollbacks[-1].step + self._pause // 2
        self._judged = 0  # step of the last revision that was compared with the one before
        self._pending: NewRevision | None = None
        self._warned = False

    def look(self) -> None:
        """Take new times, then go on with a revision, compare one or begin one."""
        with self._store.reading() as connection:
            row = get(connection, JobRow, self._id)
            if row is None:
                return
            known = revisions.list_revisions(connection, row)
            self._take(connection)
            requested = None
            if self._pending is not None:
                requested = get(connection, ProposalRow, self._pending.proposal)
            proposal_row = get(connection, ProposalRow, row.proposal)
        assert proposal_row is not None  # it stays while a job uses it
        now = known[-1]
        if self._pending is not None:
            self._go_on(requested, self._pending)
        elif now.kind == "refit" and self._judged < now.step:
            self._judge(known[-2], now, ready_document(proposal_row).profile)
        elif self._next >= self._due:
            self._due += (self._next - self._due) // WINDOW * WINDOW + WINDOW
            self._begin(now, proposal_row)

    def _take(self, connection: Connection) -> None:
        latest = measurements.latest_measured_steps(connection, self._id, 4 * WINDOW)
        due = [step for step in latest if step >= self._next]
        if not due:
            return
        by_step = measurements.read_measurements_since(connection, self._id, due[0])
        lines = plans.plan_lines(connection, self._id, due)
        for step in due:
            line = lines.get(step)
            measured = None
            if line is not None:
                measured = MeasuredStep.from_plan(from_json(line), by_step[step])
                if measured is None and step > due[-1] - _LATE:
                    return  # some ranks are still to come
            self._next = step + 1
            if measured is None:
                continue
            self._steps.append(measured)
            factors = [factor or 1.0 for factor in self._slow_ranks.slowdown]
            self._slow_ranks.observe(list(measured.rank_ms * factors), list(measured.took_ms))

    def _judge(self, before: Revision, now: Revision, profile: Profile) -> None:
        """Compare a revision with the one before, and go back if steps became slower."""
        after = [step for step in self._steps if step.step >= now.step][:JUDGED]
        if len(after) < JUDGED:
            return
        self._judged = now.step
        earlier = [step for step in self._steps if step.step < now.step][-JUDGED:]
        if len(earlier) < JUDGED:
            return  # this service did not see enough of them
        measured = measure_loss(earlier, after, profile)
        if measured is None:
            text = "job %s: the revision of step %d is not compared: a rank became slower"
            _log.info(text, self._id, now.step)
            return
        loss, limit = measured
        change = f"steps take {1 + loss:.3f} times as long for their work"
        if loss <= limit:
            _log.info("job %s: kept the revision of step %d: %s", self._id, now.step, change)
            return
        self._due = self._next + self._pause
        self._pause *= 2
        self._revise(self._id, NewRevision(before.proposal, before.slowdown, "rollback", change))

    def _begin(self, now: Revision, proposal_row: ProposalRow) -> None:
        proposal = ready_document(proposal_row)
        self._warn_of_waits()
        factors = [factor or 1.0 for factor in self._slow_ranks.slowdown]
        slow = tuple((rank, factor) for rank, factor in enumerate(factors) if factor > 1)
        current = [step for step in self._steps if step.step >= now.step]
        reason = ""
        if slow != now.slowdown:
            ranks = ", ".join(f"{rank} ({factor:g})" for rank, factor in slow)
            reason = f"slow ranks and their factors: {ranks or 'none any more'}"
        refitted = find_correction(proposal.profile, current)
        if refitted is not None and refitted.common is not None:
            by = f"measured times are {refitted.common.factor:.3f} of the profile's"
            reason = f"{by}; {reason}" if reason else by
            key = self._request_proposal(proposal.profile, refitted, proposal_row, reason)
            self._pending = NewRevision(key, slow, "refit", reason)
        elif reason:
            self._revise(self._id, NewRevision(now.proposal, slow, "refit", reason))

    def _warn_of_waits(self) -> None:
        """Log once if times include waits, which hide slow ranks."""
        if self._slow_ranks.waits_included and not self._warned:
            _log.warning(
                "job %s: ranks report equal times for unequal work: waits are included, and slow "
                "ranks cannot be seen. Report times without waits",
                self._id,
            )
        self._warned = self._slow_ranks.waits_included

    def _request_proposal(
        self, profile: Profile, refitted: RefittedProfile, row: ProposalRow, reason: str
    ) -> str:
        """Have a proposal made from the corrected profile; its id."""
        source = f"refitted to the steps of job {self._id}"
        document = write_refit(profile, refitted.schemes, source)
        text = json.dumps(document, ensure_ascii=False)
        key = secrets.token_hex(8)
        with self._store.writing() as connection:
            corrected = Profile.from_json(text, "profile")
            request = json.loads(row.request)
            request["profile"] = put_profile(connection, corrected, text)
            put_proposal(connection, key, request, None)
        self._make(key)
        _log.info("job %s: proposal %s is made: %s", self._id, key, reason)
        return key

    def _go_on(self, requested: ProposalRow | None, pending: NewRevision) -> None:
        if requested is not None and requested.state == "running":
            return
        self._pending = None
        if requested is None or requested.state != "ready":
            why = "it was removed" if requested is None else requested.error
            _log.warning("job %s: proposal %s was not made: %s", self._id, pending.proposal, why)
            return
        self._revise(self._id, pending)
