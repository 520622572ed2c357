"""What a service that was killed has left in the folder of arrays, removed when the next begins."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from seqplan.api.store import schema
from seqplan.api.store.rows import LengthsRow, locked
from seqplan.api.store.store import Store
from seqplan.api.store.tables.lengths import lengths_path

UPLOAD_PREFIX = "upload-"
"""What the folder of an upload that is coming in begins with."""

_UPLOAD = re.compile(rf"(?:tmp|{UPLOAD_PREFIX})[a-z0-9_]{{8}}")
_WRITING = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ARRAY = re.compile(r"([0-9a-f]{64})\.(npy|removed)")

_OLD_S = 3600.0
"""How long nothing was written to what another service of a shared store may still be writing."""


def remove_leftovers(store: Store) -> None:
    """Remove uploads that never ended, files half written and arrays that no data set has.

    An array that was put aside for a removal that never ended is put back.
    """
    lengths = store.files / "lengths"
    for path in [*_named(store.files, _UPLOAD), *_named(lengths, _WRITING)]:
        if not store.shared or time.time() - _written_at(path) > _OLD_S:
            _remove(path)
    for path in _named(lengths, _ARRAY):
        key, kind = path.name.split(".")
        if kind == "removed":
            _settle_removal(store, key, path)
        elif not store.shared:
            _remove_unknown(store, key, path)


def _settle_removal(store: Store, key: str, aside: Path) -> None:
    """Put an array back whose removal did not come to its end, or end it."""
    array = lengths_path(store, key)
    # Whoever is removing it just now holds the row until that is done.
    with store.writing() as connection:
        if locked(connection, LengthsRow, key) and not array.exists():
            if aside.exists():
                aside.rename(array)
        else:
            aside.unlink(missing_ok=True)


def _remove_unknown(store: Store, key: str, array: Path) -> None:
    """Remove an array of which no data set was kept, or only the histogram."""
    table = schema.lengths
    with store.reading() as connection:
        kind = connection.execute(select(table.c.kind).where(table.c.id == key)).scalar()
    if kind != "sequences":
        array.unlink(missing_ok=True)


def _named(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if name.fullmatch(path.name))


def _written_at(path: Path) -> float:
    """Return when a file, or any file of a folder, was last written to (s since the epoch)."""
    try:
        inside = [*path.iterdir()] if path.is_dir() else []
        return max(entry.stat().st_mtime for entry in [path, *inside])
    except FileNotFoundError:
        return time.time()  # its service is at work


def _remove(path: Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
    elif all(entry.name.startswith("body.") for entry in path.iterdir()):
        shutil.rmtree(path, ignore_errors=True)
