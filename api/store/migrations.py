"""Bringing a store's tables to this version: a numbered list, applied in one transaction."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Connection, delete, func, insert, inspect, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError


def _first(connection: Connection) -> None:
    schema.metadata.create_all(connection)


def _second(connection: Connection) -> None:
    """Add jobs that continue others, sampler states with plans, histograms without sequences."""
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
    _add_columns(connection, added)


def _third(connection: Connection) -> None:
    """Add the store's id, keys of jobs, expiry; keep the last acknowledgement of each rank only."""
    now = int(time.time())
    added = {
        "jobs": {
            "key": "VARCHAR(128) NOT NULL DEFAULT ''",
            "kept_from": "BIGINT NOT NULL DEFAULT 0",
            "expired_steps": "BIGINT NOT NULL DEFAULT 0",
            "asked_at": f"BIGINT NOT NULL DEFAULT {now}",
        },
        "answers": {"at": f"BIGINT NOT NULL DEFAULT {now}"},
    }
    _add_columns(connection, added)
    schema.metadata.create_all(connection)
    for table in (schema.jobs, schema.answers):
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    connection.exec_driver_sql("UPDATE jobs SET key = id WHERE key = ''")
    if inspect(connection).has_table("acks"):
        connection.exec_driver_sql(
            "INSERT INTO ranks (job, rank, step, acknowledged_at) "
            f"SELECT job, rank, MAX(step), {now} FROM acks GROUP BY job, rank"
        )
        connection.exec_driver_sql("DROP TABLE acks")
    if connection.execute(select(schema.store.c.id)).first() is None:
        connection.execute(insert(schema.store).values(id=secrets.token_hex(16)))


def _fourth(connection: Connection) -> None:
    """Expire plans of schema 1, and end the jobs that plan such ones."""
    of_job = schema.plans.c.job == schema.jobs.c.key
    planned = select(func.count()).where(of_job).scalar_subquery()
    beyond = select(func.max(schema.plans.c.step) + 1).where(of_job).scalar_subquery()
    connection.execute(
        update(schema.jobs).values(
            kept_from=func.coalesce(beyond, schema.jobs.c.kept_from),
            expired_steps=schema.jobs.c.expired_steps + planned,
        )
    )
    connection.execute(
        update(schema.jobs)
        .where(schema.jobs.c.state.in_(("planning", "abandoned", "stopped")))
        .values(
            state="failed",
            failed_step=schema.jobs.c.kept_from,
            error="planned by seqplan 0.1.0, whose proposal this version does not read. Propose "
            "again and start a new job",
        )
    )
    connection.execute(delete(schema.plans))


def _fifth(connection: Connection) -> None:
    """Add the job and the expiry of tokens."""
    _add_columns(connection, {"tokens": {"job": "VARCHAR(128)", "expires_at": "BIGINT"}})


def _sixth(connection: Connection) -> None:
    """Add the revisions of jobs."""
    refit = {"refit": "BOOLEAN NOT NULL DEFAULT FALSE", "slowdown": "TEXT"}
    _add_columns(connection, {"jobs": refit})
    schema.metadata.create_all(connection)


def _seventh(connection: Connection) -> None:
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


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    *(_first, _second, _third),
    *(_fourth, _fifth, _sixth),
    _seventh,
)
"""Migration k takes a store of version k to k + 1. Never changed once released, only added to."""


_LOCK = 0x5E9  # any number that no claim is likely to have


def read_version(connection: Connection) -> int:
    """Return how many migrations a store has been through; 0 for an empty one."""
    return connection.execute(select(schema.version.c.version)).scalar() or 0


def migrate(connection: Connection, where: str, *, alone: bool = True) -> int:
    """Apply missing migrations, and return the earlier version.

    ``StoreError`` for a store of a newer version.

    ``alone``: False if a service is using the tables as they are, which are then left so.
    """
    if connection.dialect.name == "postgresql":  # one service at a time, to the transaction's end
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    version = 0
    if inspect(connection).has_table(schema.version.name):
        version = read_version(connection)
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
    return version
