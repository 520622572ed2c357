"""The table of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.notices import notify, notify_removed
from seqplan.api.store.rows import JobRow, columns, held
from seqplan.api.store.tables.answers import forget_answers, forget_answers_below

_PLANNED_BY = ("proposal", "lengths", "tokens", "seed", "steps", "first_step", "max_len")


def add_job(connection: Connection, row: JobRow) -> None:
    """Keep a new job."""
    connection.execute(insert(schema.jobs).values(columns(row)))
    notify(connection, row.id)


def settle_job(connection: Connection, job: str, **values: Any) -> None:
    """Change a job's state, last step or failure."""
    connection.execute(update(schema.jobs).where(schema.jobs.c.id == job).values(values))
    notify(connection, job)


def settle_failed(connection: Connection, job: str, error: str) -> None:
    """Note that a job can be planned no further, whatever its state of planning was."""
    planned = select(func.max(schema.plans.c.step)).where(schema.plans.c.job == job)
    following = func.coalesce(planned.scalar_subquery() + 1, schema.jobs.c.first_step)
    connection.execute(
        update(schema.jobs)
        .where(schema.jobs.c.id == job, schema.jobs.c.state == "planning")
        .values(state="failed", failed_step=following, error=error)
    )
    notify(connection, job)


def remove_job(connection: Connection, job: str) -> bool:
    """Remove a job with all that is kept of it; False where there is none."""
    # The job first: whoever writes of it holds its row, or finds it gone (see ``held``).
    gone = connection.execute(delete(schema.jobs).where(schema.jobs.c.id == job))
    if not gone.rowcount:
        return False
    for table in (schema.batches, schema.plans, schema.acks, schema.measurements):
        connection.execute(delete(table).where(table.c.job == job))
    forget_answers_below(connection, f"/v1/jobs/{job}/")
    forget_answers(connection, ("/v1/jobs",), job)
    notify_removed(connection, job)
    return True


def unfinished(connection: Connection) -> list[JobRow]:
    """Read the jobs that have steps to plan, or may get some, in order of id."""
    query = select(schema.jobs).where(schema.jobs.c.state == "planning").order_by(schema.jobs.c.id)
    return [JobRow(**row) for row in connection.execute(query).mappings()]


def states(connection: Connection) -> dict[str, str]:
    """Return the state of every job by its id."""
    query = select(schema.jobs.c.id, schema.jobs.c.state)
    return {str(job): str(state) for job, state in connection.execute(query)}


def jobs_by_state(connection: Connection) -> dict[str, int]:
    """Count the jobs in each state."""
    query = select(schema.jobs.c.state, func.count()).group_by(schema.jobs.c.state)
    return {str(state): int(count) for state, count in connection.execute(query)}


def still_wanted(connection: Connection, row: JobRow) -> bool:
    """Whether the job of ``row`` is there, to this transaction's end, and is no other of its name.

    Of plans by the same proposal and batches it does not matter which of the two they are for.
    """
    stored = held(connection, JobRow, row.id)
    return stored is not None and all(
        getattr(stored, name) == getattr(row, name) for name in _PLANNED_BY
    )


def lasting(connection: Connection, jobs: Iterable[str]) -> set[str]:
    """Return those of the jobs that are there, and stay so to the end of this transaction."""
    # In one order, so that two transactions do not wait for each other.
    return {job for job in sorted(set(jobs)) if held(connection, JobRow, job) is not None}


def check_unused(
    connection: Connection, subject: str, column: ColumnElement[Any], key: str
) -> None:
    """Raise ``InUse`` while a job names ``key``, which is ``what``, in this column."""
    job = connection.execute(select(func.min(schema.jobs.c.id)).where(column == key)).scalar()
    if job is not None:
        raise InUse(f"{subject}: job {job} uses it; remove the job first")
