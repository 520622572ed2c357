"""Rows of removed jobs, deleted in batches that keep no other writer waiting.

A job is gone for readers when its row is: all other rows are found by its key. The table of
removals has the keys of which rows may be left, so that a killed service's successor goes on.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, tuple_

from seqplan.api.store import schema
from seqplan.plans.service_routes import JOBS

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
