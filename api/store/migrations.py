"""Bringing a store's tables to this version: a numbered list, applied in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from sqlalchemy import Connection, func, insert, inspect, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError


def _first(connection: Connection) -> None:
    schema.metadata.create_all(connection)
    connection.execute(insert(schema.store).values(id=secrets.token_hex(16)))


def _second(connection: Connection) -> None:
    """Add the job and the expiry of tokens."""
    _add_columns(connection, {"tokens": {"job": "VARCHAR(128)", "expires_at": "BIGINT"}})


def _third(connection: Connection) -> None:
    """Add the revisions of jobs."""
    refit = {"refit": "BOOLEAN NOT NULL DEFAULT FALSE", "slowdown": "TEXT"}
    _add_columns(connection, {"jobs": refit})
    schema.metadata.create_all(connection)


def _fourth(connection: Connection) -> None:
    """Add the share by which costs of a job may be off."""
    _add_columns(connection, {"jobs": {"robust": "FLOAT NOT NULL DEFAULT 0"}})


def _add_columns(connection: Connection, added: Mapping[str, Mapping[str, str]]) -> None:
    """Add columns, by table and name, that a table lacks."""
    for table, columns in added.items():
        # A new store has them from the first migration, which makes the tables of this version.
        there = {column["name"] for column in inspect(connection).get_columns(table)}
        for name, kind in columns.items():
            if name not in there:
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first, _second, _third, _fourth)
"""Migration k takes a store to ``EARLIEST`` + k. Never changed once released, only added to."""

EARLIEST = 4
"""The first schema that is read: stores of those before had documents of another version."""

SCHEMA = EARLIEST + len(MIGRATIONS) - 1
"""The schema of this version."""

_LOCK = 0x5E9  # any number that no claim is likely to have


def read_version(connection: Connection) -> int:
    """Return the schema that a store has; 0 for an empty one."""
    return connection.execute(select(schema.version.c.version)).scalar() or 0


def check_schema(found: int, where: str) -> None:
    """Raise ``StoreError`` for a schema that this version neither has nor migrates."""
    if not EARLIEST <= found <= SCHEMA:
        fix = "Use a newer seqplan" if found > SCHEMA else "Use another store"
        raise StoreError(
            f"{where}: has schema {found}, this seqplan reads {EARLIEST} to {SCHEMA}. {fix}"
        )


def migrate(connection: Connection, where: str, *, alone: bool = True) -> int:
    """Apply missing migrations, and return the earlier version.

    ``StoreError`` for a schema that is not read. ``alone``: False if a service is using the tables
    as they are, which are then left so.
    """
    if connection.dialect.name == "postgresql":  # one service at a time, to the transaction's end
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    version = 0
    if inspect(connection).has_table(schema.version.name):
        version = read_version(connection)
    if version:
        check_schema(version, where)
    if version < SCHEMA and not alone:
        raise StoreError(f"{where}: a service of an older seqplan is using it; stop that first")
    for apply in MIGRATIONS[max(0, version - EARLIEST + 1) :]:
        apply(connection)
    if version == 0:
        connection.execute(insert(schema.version).values(version=SCHEMA))
    elif version < SCHEMA:
        connection.execute(update(schema.version).values(version=SCHEMA))
    return version
