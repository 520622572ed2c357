"""Stores of other versions, for every database."""

from collections.abc import Callable

import pytest
from sqlalchemy import inspect, update

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError
from seqplan.api.store.migrations import EARLIEST, SCHEMA, read_version
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import jobs

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)
Opener = Callable[[], Store]


def test_a_newer_schema_is_rejected(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        connection.execute(update(schema.version).values(version=SCHEMA + 1))
    with pytest.raises(StoreError, match="has schema 8, this seqplan reads 4 to 7"):
        opened()


def test_a_store_of_the_earliest_schema_is_brought_to_this_one(opened: Opener) -> None:
    store = opened()
    later = {"jobs": ("refit", "slowdown", "robust"), "tokens": ("job", "expires_at")}
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        before = get(connection, JobRow, "j")
        connection.exec_driver_sql("DROP TABLE revisions")
        for table, columns in later.items():
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute(update(schema.version).values(version=EARLIEST))
    store = opened()
    with store.reading() as connection:
        assert read_version(connection) == SCHEMA
        assert get(connection, JobRow, "j") == before
        assert inspect(connection).has_table("revisions")
    opened()
