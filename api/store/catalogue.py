"""Profiles, length data sets and proposals in the store, page by page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.store import Store
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.profiler.lengths import Bucket, representative, summarise
from seqplan.profiler.lengths.digest import lengths_digest
from seqplan.profiler.profile import Profile

Row = dict[str, Any]


def get(connection: Connection, table: Table, key: str) -> Row | None:
    """The row with this id."""
    found = connection.execute(select(table).where(table.c.id == key)).mappings().first()
    return None if found is None else dict(found)


def held(connection: Connection, table: Table, key: str) -> Row | None:
    """As ``get``; nobody removes the row before the end of this transaction, which writes."""
    query = select(table).where(table.c.id == key).with_for_update(read=True, key_share=True)
    found = connection.execute(query).mappings().first()
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
    return _written(store, key, lengths, summarise(lengths).buckets, "sequences")


def write_histogram(store: Store, buckets: Sequence[Bucket]) -> Row:
    """As ``write_lengths``, for a data set of which only the histogram is known.

    Its id is that of the histogram: the array that represents it may be another data set's.
    """
    key = hashlib.sha256(f"histogram {_rows(buckets)}".encode()).hexdigest()
    return _written(store, key, representative(buckets), buckets, "histogram")


def _written(
    store: Store,
    key: str,
    lengths: npt.NDArray[np.int64],
    buckets: Sequence[Bucket],
    kind: str,
) -> Row:
    path = lengths_path(store, key)
    if not path.exists():
        with atomic_write(path, "wb") as file:
            np.save(file, lengths.astype(np.int64))
    return {
        "id": key,
        "sequences": len(lengths),
        "tokens": int(lengths.sum()),
        "longest": int(lengths.max()),
        "histogram": _rows(buckets),
        "kind": kind,
    }


def _rows(buckets: Sequence[Bucket]) -> str:
    return json.dumps([[each.over, each.up_to, each.sequences, each.tokens] for each in buckets])


def put_lengths(connection: Connection, row: Row) -> None:
    """Keep what ``write_lengths`` said of an array."""
    if get(connection, schema.lengths, row["id"]) is None:
        connection.execute(insert(schema.lengths).values(row))


def lengths_path(store: Store, key: str) -> Path:
    """The ``.npy`` file (int64) of a data set."""
    return store.files / "lengths" / f"{key}.npy"


def put_proposal(connection: Connection, key: str, request: Row, document: str | None) -> None:
    """Keep a proposal that is to be made, or that was brought along ready."""
    values = {
        "request": json.dumps(request),
        "state": "running" if document is None else "ready",
        "document": document,
    }
    known = get(connection, schema.proposals, key)
    if known is None:
        connection.execute(insert(schema.proposals).values(id=key, **values))
    elif known["document"] != document:
        # A sidecar names its proposal after its job: that one's job was removed.
        same = schema.proposals.c.id == key
        connection.execute(update(schema.proposals).where(same).values(error=None, **values))


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


def remove_proposal(connection: Connection, key: str) -> bool:
    """Remove a proposal; False where there is none. ``InUse`` while a job is planned by it."""
    if not _locked(connection, schema.proposals, key):
        return False
    _unused(connection, f"proposal {key}", schema.jobs.c.proposal == key)
    connection.execute(delete(schema.proposals).where(schema.proposals.c.id == key))
    forget_answers(connection, ("/v1/proposals", "/v1/proposals/documents"), key)
    return True


def remove_lengths(store: Store, key: str) -> bool:
    """Remove a data set with its file, in a transaction of its own; False where there is none.

    ``InUse`` while a job draws from it or a proposal is made from it.
    """
    path = lengths_path(store, key)
    aside = path.with_suffix(".removed")
    try:
        with store.writing() as connection:
            if not _locked(connection, schema.lengths, key):
                return False
            _unused(connection, f"lengths {key}", schema.jobs.c.lengths == key)
            _not_proposed_from(connection, key)
            connection.execute(delete(schema.lengths).where(schema.lengths.c.id == key))
            forget_answers(connection, ("/v1/lengths",), key)
            # Before the end: whoever brings the same data after it finds that its file is gone.
            if path.exists():
                path.rename(aside)
    except BaseException:
        if aside.exists():
            aside.rename(path)
        raise
    aside.unlink(missing_ok=True)
    return True


def forget_answers(connection: Connection, paths: Sequence[str], key: str) -> None:
    """Forget that making ``key`` was answered: asked for again, it is to be made again."""
    table = schema.answers
    begins = f'{{"id": {json.dumps(key)},'
    same = func.substr(table.c.body, 1, len(begins)) == begins
    connection.execute(delete(table).where(table.c.path.in_(paths), same))


def _locked(connection: Connection, table: Table, key: str) -> bool:
    """Whether there is such a row, which nobody takes hold of before this transaction ends."""
    query = select(table.c.id).where(table.c.id == key).with_for_update()
    return connection.execute(query).first() is not None


def _unused(connection: Connection, what: str, used: ColumnElement[bool]) -> None:
    job = connection.execute(select(func.min(schema.jobs.c.id)).where(used)).scalar()
    if job is not None:
        raise InUse(f"{what}: job {job} uses it; remove the job first")


def _not_proposed_from(connection: Connection, lengths: str) -> None:
    table = schema.proposals
    making = select(table.c.id, table.c.request).where(table.c.state == "running")
    for proposal, request in connection.execute(making.order_by(table.c.id)):
        if json.loads(request).get("lengths") == lengths:
            raise InUse(f"lengths {lengths}: proposal {proposal} is being made from them")
