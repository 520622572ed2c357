"""The table of length data sets, and their arrays on the disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, delete, insert

from seqplan.api.store import schema
from seqplan.api.store.errors import ArrayMissing
from seqplan.api.store.rows import LengthsRow, ListedLengths, columns, get, locked
from seqplan.api.store.store import Store
from seqplan.api.store.tables.answers import forget_answers
from seqplan.api.store.tables.jobs import check_unused
from seqplan.api.store.tables.proposals import check_not_made_from
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.profiler.lengths import Bucket, longest, summarise
from seqplan.profiler.lengths.digest import lengths_digest


def lengths_path(store: Store, key: str) -> Path:
    """Return the ``.npy`` file (int64) of a data set."""
    return store.files / "lengths" / f"{key}.npy"


def open_lengths(store: Store, key: str) -> npt.NDArray[np.int64]:
    """Open the array of a data set, which stays on the disk.

    ``ArrayMissing`` where its file is gone, ``ValueError`` where it is damaged.
    """
    try:
        lengths: npt.NDArray[np.int64] = np.load(lengths_path(store, key), mmap_mode="r")
    except FileNotFoundError:
        raise missing(key) from None
    return lengths


def missing(key: str) -> ArrayMissing:
    """Make the error of a data set whose file is gone."""
    return ArrayMissing(
        f"lengths {key}: their file is gone from the service's folder; upload the same data again "
        "(the id stays the same)"
    )


def write_lengths(store: Store, lengths: npt.NDArray[np.int64]) -> LengthsRow:
    """Put the array on disk; the row that ``put_lengths`` keeps. The same array is one file."""
    key = lengths_digest(lengths).removeprefix("sha256:")
    path = lengths_path(store, key)
    if not path.exists():
        with atomic_write(path, "wb") as file:
            np.save(file, lengths.astype(np.int64))
    return LengthsRow(
        id=key,
        sequences=len(lengths),
        tokens=int(lengths.sum()),
        longest=int(lengths.max()),
        histogram=_as_json(summarise(lengths).buckets),
        kind="sequences",
    )


def histogram_row(buckets: Sequence[Bucket]) -> LengthsRow:
    """Make the row of a data set of which only the histogram is known: nothing is on the disk.

    Its id is that of the histogram: the array that represents it may be another data set's.
    """
    text = _as_json(buckets)
    return LengthsRow(
        id=hashlib.sha256(f"histogram {text}".encode()).hexdigest(),
        sequences=sum(bucket.sequences for bucket in buckets),
        tokens=sum(bucket.tokens for bucket in buckets),
        longest=longest(buckets),
        histogram=text,
        kind="histogram",
    )


def put_lengths(connection: Connection, row: LengthsRow) -> None:
    """Keep what ``write_lengths`` said of an array."""
    if get(connection, ListedLengths, row.id) is None:
        connection.execute(insert(schema.lengths).values(columns(row)))


def remove_lengths(store: Store, key: str) -> bool:
    """Remove a data set with its file, in a transaction of its own; False where there is none.

    ``InUse`` while a job draws from it or a proposal is made from it.
    """
    path = lengths_path(store, key)
    aside = path.with_suffix(".removed")
    try:
        with store.writing() as connection:
            if not locked(connection, LengthsRow, key):
                return False
            check_unused(connection, f"lengths {key}", schema.jobs.c.lengths, key)
            check_not_made_from(connection, key)
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


def _as_json(buckets: Sequence[Bucket]) -> str:
    return json.dumps(
        [[bucket.over, bucket.up_to, bucket.sequences, bucket.tokens] for bucket in buckets]
    )
