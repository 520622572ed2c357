"""The table of batches that trainers pushed."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, insert, literal, select

from seqplan.api.store import schema
from seqplan.api.store.store import notify
from seqplan.api.store.tables.jobs import job_key, key_of
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.batches_file import batch_from_json, batch_to_json


def add_batches(connection: Connection, job: str, batches: Iterable[Batch]) -> None:
    """Keep batches that the trainer pushed, of a job that exists."""
    key = job_key(connection, job)
    rows = [{"job": key, "step": batch.step, "document": batch_to_json(batch)} for batch in batches]
    if rows:
        connection.execute(insert(schema.batches), rows)
        notify(connection, job)


def copy_batches(connection: Connection, job: str, first_step: int, to: str) -> None:
    """Give the pushed batches of ``job`` from ``first_step`` on to another job."""
    table = schema.batches
    same = select(literal(job_key(connection, to)), table.c.step, table.c.document)
    wanted = same.where(table.c.job == key_of(job), table.c.step >= first_step)
    connection.execute(insert(table).from_select(["job", "step", "document"], wanted))


def batches_after(connection: Connection, job: str, step: int, limit: int) -> list[Batch]:
    """Read the first ``limit`` pushed batches beyond ``step``."""
    table = schema.batches
    query = select(table.c.document).where(table.c.job == key_of(job), table.c.step > step)
    documents = connection.execute(query.order_by(table.c.step).limit(limit)).scalars()
    return [batch_from_json(text, f"job {job}") for text in documents]


def last_pushed(connection: Connection, job: str) -> int:
    """Return the last step that was pushed; −1 when there is none."""
    query = select(func.max(schema.batches.c.step)).where(schema.batches.c.job == key_of(job))
    step = connection.execute(query).scalar()
    return -1 if step is None else int(step)
