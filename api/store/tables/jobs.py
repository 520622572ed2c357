"""The table of jobs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, delete, func, insert, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.rows import JobRow, columns, get_for_update
from seqplan.api.store.store import notify, notify_removed
from seqplan.api.store.tables.answers import forget_answers
from seqplan.plans.service_routes import JOBS

STATES = ("planning", "planned", "failed", "abandoned", "stopped")
"""What a job may be; ``abandoned``: planned no further, as no rank has requested anything."""

_PLANNED_BY = (
    "proposal",
    "lengths",
    "tokens",
    "seed",
    "steps",
    "first_step",
    "max_len",
    "slowdown",
    "robust",
)


def add_job(connection: Connection, row: JobRow) -> None:
    """Keep a new job, under a key that no other job has had."""
    values = {**columns(row), "key": secrets.token_urlsafe(6), "asked_at": int(time.time())}
    connection.execute(insert(schema.jobs).values(values))
    notify(connection, row.id)


def key_of(job: str) -> ScalarSelect[Any]:
    """Select the key that rows of other tables have of a job; null if there is no such job."""
    return select(schema.jobs.c.key).where(schema.jobs.c.id == job).scalar_subquery()


def job_key(connection: Connection, job: str) -> str | None:
    """Return the key that rows of other tables have of a job; None if there is no such job."""
    return connection.execute(select(schema.jobs.c.key).where(schema.jobs.c.id == job)).scalar()


def settle_job(connection: Connection, job: str, **values: Any) -> None:
    """Change a job's state, last step or failure."""
    connection.execute(update(schema.jobs).where(schema.jobs.c.id == job).values(values))
    notify(connection, job)


def settle_failed(connection: Connection, job: str, error: str) -> None:
    """Note that a job can be planned no further, whatever its state of planning was."""
    planned = select(func.max(schema.plans.c.step)).where(schema.plans.c.job == key_of(job))
    following = func.coalesce(planned.scalar_subquery() + 1, schema.jobs.c.first_step)
    connection.execute(
        update(schema.jobs)
        .where(schema.jobs.c.id == job, schema.jobs.c.state == "planning")
        .values(state="failed", failed_step=following, error=error)
    )
    notify(connection, job)


def remove_job(connection: Connection, job: str) -> bool:
    """Remove a job, for readers with all that is kept of it; False if there is none.

    Its rows in other tables are deleted later, in batches: see ``expiry``.
    """
    key = job_key(connection, job)
    # The job first: whoever writes of it holds its row, or finds it gone (see ``get_for_update``).
    gone = connection.execute(delete(schema.jobs).where(schema.jobs.c.id == job))
    if not gone.rowcount:
        return False
    connection.execute(insert(schema.removals).values(job=key))
    forget_answers(connection, (JOBS,), job)
    notify_removed(connection, job)
    return True


def list_unfinished(connection: Connection) -> list[JobRow]:
    """Read the jobs that have or may get steps to plan, in order of id."""
    return jobs_in_state(connection, "planning")


def jobs_in_state(connection: Connection, state: str) -> list[JobRow]:
    """Read the jobs in a state, in order of id."""
    names = (schema.jobs.c[field.name] for field in fields(JobRow))
    query = select(*names).where(schema.jobs.c.state == state).order_by(schema.jobs.c.id)
    return [JobRow(**row) for row in connection.execute(query).mappings()]


def list_ended(connection: Connection, moment: float) -> list[str]:
    """List jobs that are planned no further, and unrequested by ranks since ``moment`` (Unix)."""
    table = schema.jobs
    ended = (table.c.state != "planning", table.c.asked_at < int(moment))
    query = select(table.c.id).where(*ended).order_by(table.c.id)
    return [str(job) for job in connection.execute(query).scalars()]


def states(connection: Connection) -> dict[str, str]:
    """Return the state of every job by its id."""
    query = select(schema.jobs.c.id, schema.jobs.c.state)
    return {str(job): str(state) for job, state in connection.execute(query)}


def jobs_by_state(connection: Connection) -> dict[str, int]:
    """Count the jobs in each state."""
    query = select(schema.jobs.c.state, func.count()).group_by(schema.jobs.c.state)
    return {str(state): int(count) for state, count in connection.execute(query)}


def still_wanted(connection: Connection, row: JobRow) -> bool:
    """Whether the job of ``row`` exists unchanged, until this transaction ends.

    Of plans by the same proposal and batches it does not matter which of the two they are for.
    """
    stored = get_for_update(connection, JobRow, row.id)
    return (
        stored is not None
        and stored.state == row.state
        and all(getattr(stored, name) == getattr(row, name) for name in _PLANNED_BY)
    )


def lasting(connection: Connection, jobs: Iterable[str]) -> dict[str, str]:
    """Return the keys of existing jobs, which last until this transaction ends."""
    # In one order, so that two transactions do not wait for each other.
    rows = ((job, get_for_update(connection, JobRow, job)) for job in sorted(set(jobs)))
    return {job: row.key for job, row in rows if row is not None}


def note_requests(connection: Connection, asked_at: Mapping[str, float]) -> None:
    """Note when a rank of each job has last requested something (Unix time)."""
    table = schema.jobs
    for job, at in sorted(asked_at.items()):
        earlier = (table.c.id == job, table.c.asked_at < int(at))
        connection.execute(update(table).where(*earlier).values(asked_at=int(at)))


def check_unused(
    connection: Connection, subject: str, column: ColumnElement[Any], key: str
) -> None:
    """Raise ``InUse`` while a job names ``key``, which is ``what``, in this column."""
    job = connection.execute(select(func.min(schema.jobs.c.id)).where(column == key)).scalar()
    if job is not None:
        raise InUse(f"{subject}: job {job} uses it; remove the job first")
