"""The table of length data sets, and their arrays on the disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, delete, insert, select

from seqplan.api.store import schema
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing
from seqplan.api.store.lru import Lru
from seqplan.api.store.rows import LengthsRow, ListedLengths, columns, get, lock_row
from seqplan.api.store.store import Store
from seqplan.api.store.tables.answers import forget_answers
from seqplan.api.store.tables.jobs import check_unused
from seqplan.api.store.tables.proposals import check_not_made_from
from seqplan.costs.lengths import Bucket, longest, summarise
from seqplan.costs.lengths.digest import lengths_digest
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.service_routes import LENGTHS


def lengths_path(store: Store, key: str) -> Path:
    """Return the ``.npy`` file (int64) of a data set."""
    return store.files / "lengths" / f"{key}.npy"


def open_lengths(store: Store, key: str) -> npt.NDArray[np.int64]:
    """Read the array of a data set.

    ``ArrayMissing`` if its file is gone, ``ArrayDamaged`` if it differs from the upload.
    """
    path = lengths_path(store, key)
    try:
        before = _version(path)
        lengths = _read_array(path)
        if before == _version(path):
            digest = _DIGESTS.find(before, lambda: lengths_digest(lengths))
        else:  # changed during the read: nothing is remembered of it
            digest = lengths_digest(lengths)
        if digest.removeprefix("sha256:") != key:
            raise ArrayDamaged(_is_damaged(key, "the content has another sha256"))
    except FileNotFoundError:
        raise missing(key) from None
    except ValueError as error:
        raise ArrayDamaged(_is_damaged(key, " ".join(str(error).split()))) from None
    return lengths


def find_damaged(store: Store, stopped: Callable[[], bool]) -> Iterator[str]:
    """Yield a line for each data set whose file is gone or damaged, until ``stopped``."""
    table = schema.lengths
    query = select(table.c.id).where(table.c.kind == "sequences").order_by(table.c.id)
    with store.reading() as connection:
        keys = list(connection.execute(query).scalars())
    for key in keys:
        if stopped():
            return
        try:
            open_lengths(store, key)
        except (ArrayMissing, ArrayDamaged) as error:
            yield str(error)


_Version = tuple[str, int, int, int, int]

_DIGESTS: Lru[_Version, str] = Lru(1024)


def _version(path: Path) -> _Version:
    """Return what changes if a file is written."""
    state = path.stat()
    return str(path), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _read_array(path: Path) -> npt.NDArray[np.int64]:
    """Read an array from disk; ``ValueError`` for a file that is no array of integers.

    It is not mapped: a file that is cut off while it is mapped ends the process by SIGBUS.
    """
    try:
        lengths: npt.NDArray[np.int64] = np.load(path, allow_pickle=False)
    except (EOFError, SyntaxError) as error:  # numpy's of a header that is cut or overwritten
        raise ValueError(str(error) or "the file is cut off") from None
    if lengths.dtype != np.int64 or lengths.ndim != 1:
        raise ValueError(f"the file has {lengths.ndim} dimensions of {lengths.dtype}")
    return lengths


def _is_damaged(key: str, reason: str) -> str:
    return (
        f"lengths {key}: their file is damaged ({reason}). Upload the same data again (the id "
        "stays the same)."
    )


def missing(key: str) -> ArrayMissing:
    """Make the error of a data set whose file is gone."""
    return ArrayMissing(
        f"lengths {key}: their file is gone from the service's folder; upload the same data again "
        "(the id stays the same)"
    )


def write_lengths(store: Store, lengths: npt.NDArray[np.int64]) -> LengthsRow:
    """Put an array on disk, unless it is there; return the row that ``put_lengths`` keeps."""
    key = lengths_digest(lengths).removeprefix("sha256:")
    path = lengths_path(store, key)
    try:
        open_lengths(store, key)
    except (ArrayMissing, ArrayDamaged):
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
    """Store the result of ``write_lengths`` for an array."""
    if get(connection, ListedLengths, row.id) is None:
        connection.execute(insert(schema.lengths).values(columns(row)))


def remove_lengths(store: Store, key: str) -> bool:
    """Remove a data set with its file, in a separate transaction; False if there is none.

    ``InUse`` while a job draws from it or a proposal is made from it.
    """
    path = lengths_path(store, key)
    aside = path.with_suffix(".removed")
    try:
        with store.writing() as connection:
            if not lock_row(connection, LengthsRow, key):
                return False
            check_unused(connection, f"lengths {key}", schema.jobs.c.lengths, key)
            check_not_made_from(connection, key)
            connection.execute(delete(schema.lengths).where(schema.lengths.c.id == key))
            forget_answers(connection, (LENGTHS,), key)
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
    return json.dumps([astuple(bucket) for bucket in buckets])
