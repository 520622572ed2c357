"""Notices to other services of a shared store: a job has changed, or is gone."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

CHANNEL = "seqplan"


_REMOVED = "/"  # no id in an HTTP request has it


def notify(connection: Connection, job: str) -> None:
    """Announce, when the transaction ends, a change of ``job``. Nobody listens at SQLite."""
    if connection.dialect.name == "postgresql":
        origin = connection.get_execution_options()["origin"]
        connection.execute(select(func.pg_notify(CHANNEL, f"{origin} {job}")))


def notify_removed(connection: Connection, job: str) -> None:
    """Announce, when the transaction ends, that ``job`` was removed."""
    notify(connection, _REMOVED + job)


def removed_job(notice: str) -> str | None:
    """Return the job that was removed by a notice; None for any other notice."""
    return notice.removeprefix(_REMOVED) if notice.startswith(_REMOVED) else None
