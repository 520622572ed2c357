"""Profiles, length data sets and proposals in the store, page by page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Table, insert, select, update

from seqplan.api.store import schema
from seqplan.api.store.store import Store
from seqplan.planner.make_proposal import lengths_digest
from seqplan.plans.atomic import atomic_write
from seqplan.profiler.lengths import summarise
from seqplan.profiler.profile import Profile

Row = dict[str, Any]


def get(connection: Connection, table: Table, key: str) -> Row | None:
    """The row with this id."""
    found = connection.execute(select(table).where(table.c.id == key)).mappings().first()
    return None if found is None else dict(found)


def page(
    connection: Connection, table: Table, columns: list[str], after: str, limit: int
) -> tuple[list[Row], str | None]:
    """Rows in order of id beyond ``after``, and the id to go on from (None: that was all)."""
    query = select(*(table.c[name] for name in columns)).where(table.c.id > after)
    found = connection.execute(query.order_by(table.c.id).limit(limit + 1)).mappings().all()
    rows = [dict(row) for row in found[:limit]]
    return rows, rows[-1]["id"] if len(found) > limit else None


def put_profile(connection: Connection, profile: Profile, document: str) -> str:
    """Keep a profile; its id, the hex of its digest."""
    key = profile.digest.removeprefix("sha256:")
    if get(connection, schema.profiles, key) is None:
        values = {"id": key, "name": profile.name, "document": document}
        connection.execute(insert(schema.profiles).values(values))
    return key


def write_lengths(store: Store, lengths: npt.NDArray[np.int64]) -> Row:
    """Put the array on disk; the row that ``put_lengths`` keeps. The same array is one file."""
    key = lengths_digest(lengths).removeprefix("sha256:")
    path = lengths_path(store, key)
    if not path.exists():
        with atomic_write(path, "wb") as file:
            np.save(file, lengths.astype(np.int64))
    summary = summarise(lengths)
    buckets = [
        [bucket.over, bucket.up_to, bucket.sequences, bucket.tokens] for bucket in summary.buckets
    ]
    return {
        "id": key,
        "sequences": len(lengths),
        "tokens": int(lengths.sum()),
        "longest": int(lengths.max()),
        "histogram": json.dumps(buckets),
    }


def put_lengths(connection: Connection, row: Row) -> None:
    """Keep what ``write_lengths`` said of an array."""
    if get(connection, schema.lengths, row["id"]) is None:
        connection.execute(insert(schema.lengths).values(row))


def lengths_path(store: Store, key: str) -> Path:
    """The ``.npy`` file (int64) of a data set."""
    return store.files / "lengths" / f"{key}.npy"


def put_proposal(connection: Connection, key: str, request: Row, document: str | None) -> None:
    """Keep a proposal that is to be made, or that was brought along ready."""
    if get(connection, schema.proposals, key) is None:
        connection.execute(
            insert(schema.proposals).values(
                id=key,
                request=json.dumps(request),
                state="running" if document is None else "ready",
                document=document,
            )
        )


def settle_proposal(
    connection: Connection, key: str, *, document: str | None = None, error: str | None = None
) -> None:
    """A proposal was made, or could not be."""
    state = "ready" if document is not None else "failed"
    connection.execute(
        update(schema.proposals)
        .where(schema.proposals.c.id == key)
        .values(state=state, document=document, error=error)
    )
