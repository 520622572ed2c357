"""Bringing a store's tables to this version: a numbered list, applied in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, func, insert, inspect, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError


def _first(connection: Connection) -> None:
    schema.metadata.create_all(connection)


def _second(connection: Connection) -> None:
    """Add jobs that continue others, sampler states beside plans, histograms without sequences."""
    added = {
        "jobs": {
            "continues": "VARCHAR(128)",
            "first_step": "BIGINT NOT NULL DEFAULT 0",
            "max_len": "BIGINT",
            "first_epoch": "BIGINT NOT NULL DEFAULT 0",
            "first_cursor": "BIGINT NOT NULL DEFAULT 0",
        },
        "plans": {"epoch": "BIGINT", "cursor": "BIGINT"},
        "lengths": {"kind": "VARCHAR(16) NOT NULL DEFAULT 'sequences'"},
    }
    for table, columns in added.items():
        # A new store has them from the first migration, which makes the tables of this version.
        there = {column["name"] for column in inspect(connection).get_columns(table)}
        for name, kind in columns.items():
            if name not in there:
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first, _second)
"""Migration k takes a store of version k to k + 1. Never changed once released, only added to."""


_LOCK = 0x5E9  # any number that no claim is likely to have


def stored_version(connection: Connection) -> int:
    """Return how many migrations a store has been through; 0 for an empty one."""
    return connection.execute(select(schema.version.c.version)).scalar() or 0


def migrate(connection: Connection, where: str, *, alone: bool = True) -> None:
    """Apply what is missing; ``StoreError`` for a store of a newer version.

    ``alone``: False where a service is using the tables as they are, which are then left so.
    """
    if connection.dialect.name == "postgresql":  # one service at a time, to the transaction's end
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    version = 0
    if inspect(connection).has_table(schema.version.name):
        version = stored_version(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{where}: has schema {version}, this seqplan knows {len(MIGRATIONS)}; use a newer "
            "seqplan, or another store"
        )
    if version < len(MIGRATIONS) and not alone:
        raise StoreError(f"{where}: a service of an older seqplan is using it; stop that first")
    for apply in MIGRATIONS[version:]:
        apply(connection)
    if version == 0:
        connection.execute(insert(schema.version).values(version=len(MIGRATIONS)))
    elif version < len(MIGRATIONS):
        connection.execute(update(schema.version).values(version=len(MIGRATIONS)))
