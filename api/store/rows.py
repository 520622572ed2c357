"""Rows of the store as records, and reading one of them or a page.

The fields of a record are columns of its table, in the order in which answers list them; reading a
record reads these columns and no others, so that a page of profiles does not load their documents.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from seqplan.api.store import schema

SlowFactors = tuple[tuple[int, float | None], ...]
"""(rank, factor) of ranks that are slower than the profile has it, None for a lost one."""


def read_slowdown(text: str | None) -> SlowFactors:
    """Read the slow ranks of a row."""
    return () if text is None else tuple((rank, factor) for rank, factor in json.loads(text))


def write_slowdown(slowdown: SlowFactors) -> str | None:
    """Write slow ranks for a row."""
    return json.dumps(slowdown) if slowdown else None


def list_lost(slowdown: SlowFactors) -> tuple[int, ...]:
    """List the lost ranks, for which nothing waits."""
    return tuple(rank for rank, factor in slowdown if factor is None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table whose rows have an id, or some columns of it."""

    table: ClassVar[Table]
    id: str


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True, kw_only=True)
class ListedProfile(Row):
    """A profile as pages list it."""

    table: ClassVar[Table] = schema.profiles
    name: str


@dataclass(frozen=True, kw_only=True)
class ProfileRow(ListedProfile):
    """An uploaded profile with its document."""

    document: str


@dataclass(frozen=True, kw_only=True)
class ListedLengths(Row):
    """A length data set as pages list it; ``kind``: sequences, or histogram."""

    table: ClassVar[Table] = schema.lengths
    kind: str
    sequences: int
    tokens: int
    longest: int


@dataclass(frozen=True, kw_only=True)
class LengthsRow(ListedLengths):
    """A length data set with its histogram, as JSON."""

    histogram: str


@dataclass(frozen=True, kw_only=True)
class ListedProposal(Row):
    """A proposal as pages list it; ``state``: running, ready or failed."""

    table: ClassVar[Table] = schema.proposals
    state: str
    error: str | None


@dataclass(frozen=True, kw_only=True)
class ProposalRow(ListedProposal):
    """A proposal with the request that it is made from, as JSON, and its document."""

    request: str
    document: str | None


@dataclass(frozen=True, kw_only=True)
class JobOutline(Row):
    """A job as the pages of progress list it."""

    table: ClassVar[Table] = schema.jobs
    state: str
    world_size: int
    look_ahead: int
    first_step: int
    last_step: int | None
    failed_step: int | None
    error: str | None
    slowdown: str | None


@dataclass(frozen=True, kw_only=True)
class ListedJob(Row):
    """A job as pages list it; what the columns mean stands in the schema."""

    table: ClassVar[Table] = schema.jobs
    proposal: str
    lengths: str | None = None
    tokens: int | None = None
    seed: int
    steps: int | None = None
    look_ahead: int
    world_size: int
    state: str = "planning"
    last_step: int | None = None
    failed_step: int | None = None
    error: str | None = None
    continues: str | None = None
    first_step: int = 0


@dataclass(frozen=True, kw_only=True)
class JobRow(ListedJob):
    """A job with all of its columns."""

    key: str = ""
    max_len: int | None = None
    first_epoch: int = 0
    first_cursor: int = 0
    kept_from: int = 0
    expired_steps: int = 0
    asked_at: int = 0
    refit: bool = False
    slowdown: str | None = None
    robust: float = 0.0

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """List the ranks that the job is planned without."""
        return list_lost(read_slowdown(self.slowdown))


def columns(row: Row) -> dict[str, Any]:
    """Return the columns of a record by name, as inserts and answers want them."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def get(connection: Connection, kind: type[AnyRow], key: str) -> AnyRow | None:
    """Read the row with this id; None if there is none."""
    return _first(connection, kind, _query(kind).where(kind.table.c.id == key))


def get_for_update(connection: Connection, kind: type[AnyRow], key: str) -> AnyRow | None:
    """As ``get``; nobody removes the row before the end of this transaction, which writes."""
    query = _query(kind).where(kind.table.c.id == key)
    return _first(connection, kind, query.with_for_update(read=True, key_share=True))


def lock_row(connection: Connection, kind: type[Row], key: str) -> bool:
    """Whether there is such a row, which nobody takes hold of before this transaction ends."""
    query = select(kind.table.c.id).where(kind.table.c.id == key).with_for_update()
    return connection.execute(query).first() is not None


def page(
    connection: Connection, kind: type[AnyRow], after: str, limit: int, *which: ColumnElement[bool]
) -> tuple[list[AnyRow], str | None]:
    """Read rows in order of id beyond ``after``, and the next id or None.

    ``which``: conditions that the rows fulfill.
    """
    query = _query(kind).where(kind.table.c.id > after, *which).order_by(kind.table.c.id)
    rows = [kind(**row) for row in connection.execute(query.limit(limit + 1)).mappings()]
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def upsert(
    connection: Connection, table: Table, rows: list[dict[str, Any]], growing: str | None = None
) -> None:
    """Insert rows, or replace those of the same primary key.

    ``growing``: a column; rows are replaced only if its value is larger then.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    query = dialect.insert(table)
    new, key = query.excluded, [column.name for column in table.primary_key]
    newest = {column.name: new[column.name] for column in table.c if column.name not in key}
    later = None if growing is None else new[growing] > table.c[growing]
    connection.execute(
        query.on_conflict_do_update(index_elements=key, set_=newest, where=later), rows
    )


def _query(kind: type[Row]) -> Select[Any]:
    return select(*(kind.table.c[field.name] for field in fields(kind)))


def _first(connection: Connection, kind: type[AnyRow], query: Select[Any]) -> AnyRow | None:
    row = connection.execute(query).mappings().first()
    return None if row is None else kind(**row)
