"""Telling the other services of a shared store that a job has changed."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

CHANNEL = "seqplan"


def notify(connection: Connection, job: str) -> None:
    """Say, when the transaction ends, that there is news of ``job``. Nobody listens at SQLite."""
    if connection.dialect.name == "postgresql":
        origin = connection.get_execution_options()["origin"]
        connection.execute(select(func.pg_notify(CHANNEL, f"{origin} {job}")))
