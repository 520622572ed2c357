"""Rows deleted in batches that keep no other writer waiting: of old steps and removed jobs.

Steps that every rank has acknowledged long ago expire with their plans and times. A later start
from a checkpoint needs the sampler's states, of which one in ``STATE_EVERY`` stays.

A removed job is gone for readers when its row is: all other rows are found by its key. The table of
removals has the keys of which rows may be left, so that a killed service's successor goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from seqplan.api.store import schema
from seqplan.api.store.rows import JobRow
from seqplan.api.store.tables.jobs import key_of
from seqplan.plans.service_routes import JOBS

STATE_EVERY = 256
"""Steps from one kept sampler state to the next: a start draws at most so many steps again."""

_ROWS_PER_STEP = 3  # at most: its plan, its batch, its sampler's state


@dataclass(frozen=True)
class Retention:
    """How much is kept of each job.

    ``steps``: behind the slowest rank, whose plans, batches and times are kept.
    ``measurements``: at most so many times of ranks are kept, but ``least_measured`` steps.
    """

    steps: int = 5000
    measurements: int = 2_000_000
    least_measured: int = 200

    def measured_steps(self, world_size: int) -> int:
        """Return of how many steps behind the slowest rank the times are kept."""
        bounded = max(self.least_measured, self.measurements // max(1, world_size))
        return min(self.steps, bounded)


def expire_batch(
    connection: Connection, job: JobRow, slowest: int, retention: Retention, limit: int
) -> bool:
    """Delete at most ``limit`` rows of expired steps of a job; False if that was all of them.

    ``slowest``: the last step that every rank has acknowledged.
    """
    measured = slowest + 1 - retention.measured_steps(job.world_size)
    times = schema.measurements
    of_job = (times.c.job == job.key) & (times.c.step < measured)
    if measured > 0 and delete_rows(connection, times, of_job, limit) == limit:
        return True
    first = slowest + 1 - retention.steps
    steps = max(1, (limit - 1) // _ROWS_PER_STEP)
    until = _step_after(connection, job, steps, first)
    if until is None:
        return False
    _expire_steps(connection, job, until)
    return True


def _step_after(connection: Connection, job: JobRow, steps: int, first: int) -> int | None:
    """Return the step up to which ``steps`` more plans can expire; None if there are none."""
    table = schema.plans
    query = select(table.c.step).where(table.c.job == job.key, table.c.step < first)
    oldest = connection.execute(query.order_by(table.c.step).limit(steps)).scalars().all()
    return oldest[-1] + 1 if oldest else None


def _expire_steps(connection: Connection, job: JobRow, until: int) -> None:
    plans, states = schema.plans, schema.sampler_states
    expired = (plans.c.job == job.key) & (plans.c.step < until)
    kept = select(plans.c.job, plans.c.step, plans.c.epoch, plans.c.cursor).where(
        expired, plans.c.step % STATE_EVERY == 0, plans.c.epoch.is_not(None)
    )
    connection.execute(insert(states).from_select(["job", "step", "epoch", "cursor"], kept))
    count = connection.execute(select(func.count()).where(expired)).scalar_one()
    connection.execute(plans.delete().where(expired))
    batches = schema.batches
    connection.execute(
        batches.delete().where((batches.c.job == job.key) & (batches.c.step < until))
    )
    table = schema.jobs
    connection.execute(
        update(table)
        .where(table.c.key == job.key)
        .values(kept_from=until, expired_steps=table.c.expired_steps + count)
    )


def slowest_step(connection: Connection, job: JobRow) -> int:
    """Return the last step that every rank that is left has acknowledged; −1 for none."""
    table = schema.ranks
    query = select(func.count(), func.min(table.c.step))
    of_job = (table.c.job == key_of(job.id), table.c.rank < job.world_size)
    count, slowest = connection.execute(query.where(*of_job)).one()
    return int(slowest) if count == job.world_size - len(job.lost_ranks) else -1


MOST_ROWS = 1000
"""Rows that one transaction deletes or changes in the background."""

_OF_JOBS = (
    schema.ranks,
    schema.measurements,
    schema.batches,
    schema.sampler_states,
    schema.revisions,
    schema.plans,
)


def pending_removals(connection: Connection) -> list[str]:
    """Return the keys of removed jobs whose rows are still to be deleted."""
    return [str(key) for key in connection.execute(select(schema.removals.c.job)).scalars()]


def delete_batch(connection: Connection, key: str, limit: int) -> bool:
    """Delete at most ``limit`` rows of a removed job; False if that was all of them."""
    left = limit
    for table in _OF_JOBS:
        left -= delete_rows(connection, table, table.c.job == key, left)
        if not left:
            return True
    path, prefix = schema.answers.c.path, f"{JOBS}/{key}/"
    left -= delete_rows(
        connection, schema.answers, func.substr(path, 1, len(prefix)) == prefix, left
    )
    if not left:
        return True
    connection.execute(delete(schema.removals).where(schema.removals.c.job == key))
    return False


def delete_rows(connection: Connection, table: Table, which: ColumnElement[Any], limit: int) -> int:
    """Delete at most ``limit`` rows of a table, and count them."""
    names = list(table.primary_key.columns)
    some = select(*names).where(which).limit(limit)
    return connection.execute(delete(table).where(tuple_(*names).in_(some))).rowcount
