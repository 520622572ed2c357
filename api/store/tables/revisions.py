"""The table of revisions: which proposal and slow ranks a job is planned by from a step on."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, func, insert, select

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.rows import JobRow, SlowFactors, read_slowdown, write_slowdown
from seqplan.api.store.tables.jobs import job_key, key_of, settle_job
from seqplan.api.store.tables.plans import last_planned


@dataclass(frozen=True)
class NewRevision:
    """A proposal and slow ranks to plan steps by; ``kind``: begin, request, refit or rollback."""

    proposal: str
    slowdown: SlowFactors
    kind: str
    reason: str


@dataclass(frozen=True)
class Revision(NewRevision):
    """The proposal and the slow ranks of a job's steps from ``step`` on; ``at``: Unix time."""

    step: int
    at: int


def list_revisions(connection: Connection, row: JobRow) -> list[Revision]:
    """Read all revisions of a job, oldest first; one if it was never revised."""
    table = schema.revisions
    query = select(table).where(table.c.job == key_of(row.id)).order_by(table.c.number)
    stored = [
        Revision(r.proposal, read_slowdown(r.slowdown), r.kind, r.reason, r.step, r.at)
        for r in connection.execute(query)
    ]
    return stored or [_describe_begin(row)]


def add_revision(connection: Connection, row: JobRow, new: NewRevision) -> Revision:
    """Plan the unplanned steps of a job by this proposal, around slow ranks."""
    key = job_key(connection, row.id)
    last = last_planned(connection, row.id)
    step = row.first_step if last is None else last + 1
    added = Revision(**asdict(new), step=step, at=int(time.time()))
    table = schema.revisions
    count = connection.execute(select(func.count()).where(table.c.job == key)).scalar() or 0
    for number, revision in enumerate((added,) if count else (_describe_begin(row), added), count):
        slowdown = write_slowdown(revision.slowdown)
        values = {**asdict(revision), "job": key, "number": number, "slowdown": slowdown}
        connection.execute(insert(table).values(values))
    settle_job(connection, row.id, proposal=new.proposal, slowdown=write_slowdown(new.slowdown))
    return added


def check_no_revision(connection: Connection, proposal: str) -> None:
    """Raise ``InUse`` if a job was, and may again be, planned by a proposal."""
    table = schema.revisions
    of_jobs = select(func.min(schema.jobs.c.id)).join(table, table.c.job == schema.jobs.c.key)
    job = connection.execute(of_jobs.where(table.c.proposal == proposal)).scalar()
    if job is not None:
        raise InUse(f"proposal {proposal}: job {job} was planned by it; remove the job first")


def _describe_begin(row: JobRow) -> Revision:
    slowdown = read_slowdown(row.slowdown)
    return Revision(row.proposal, slowdown, "begin", "as the job began", row.first_step, 0)
