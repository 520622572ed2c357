"""Files in the folder of arrays that no row of the store has: kept for days, then removed.

A service that was killed leaves them; a database that was restored from a backup, or is not the
folder's, does not know them either.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select

from seqplan.api.store import schema
from seqplan.api.store.ownership import ARRAY
from seqplan.api.store.rows import LengthsRow, lock_row
from seqplan.api.store.store import Store
from seqplan.api.store.tables.lengths import lengths_path
from seqplan.plans.format.atomic_file import atomic_write

UPLOAD_PREFIX = "upload-"
"""What the folder of an upload that is coming in begins with."""

QUIET_S = 3600.0
"""An upload that comes in, or a file that is being written, has changed within this time."""

GRACE_DAYS = 7.0
"""How long a file stays after it was first found to be nobody's."""

_UPLOAD = re.compile(rf"(?:tmp|{UPLOAD_PREFIX})[a-z0-9_]{{8}}")
_WRITING = re.compile(r"\.[0-9a-f]{16}\.tmp")
_FOUND = "leftovers.json"
"""When each of them was first found: its path in the folder, and the Unix time."""

_DAY_S = 86400.0

_log = logging.getLogger("seqplan.store")


def remove_leftovers(store: Store, grace_days: float = GRACE_DAYS) -> None:
    """Remove uploads that never ended, half-written files and arrays of no data set, after days."""
    lengths, now = store.files / "lengths", time.time()
    found = _read_found(store)
    uploads = (path for path in _parse_name(store.files, _UPLOAD) if _is_upload(path))
    arrays = (path for path in _parse_name(lengths, ARRAY) if not _is_needed(store, path))
    since = {}
    for path in (*uploads, *_parse_name(lengths, _WRITING), *arrays):
        if now - _last_change(path) < QUIET_S:
            continue
        name = str(path.relative_to(store.files))
        if name not in found:
            _log.warning(
                "%s: belongs to nothing in the store; it is removed after %g days", path, grace_days
            )
        since[name] = found.get(name, now)
        if now - since[name] >= grace_days * _DAY_S:
            _log.warning("%s: removed, %g days after it was first found", path, grace_days)
            _remove(store, path)
            del since[name]
    if since != found:
        with atomic_write(store.files / _FOUND) as file:
            json.dump(since, file)


def put_back_arrays(store: Store) -> None:
    """Put arrays back whose data sets are there: their removal did not come to its end."""
    for aside in _parse_name(store.files / "lengths", ARRAY):
        key, array = aside.name.split(".")[0], aside.with_suffix(".npy")
        if aside.suffix == ".removed":
            # Whoever is removing it just now holds the row until that is done.
            with store.writing() as connection:
                known = lock_row(connection, LengthsRow, key)
                if known and not array.exists() and aside.exists():
                    aside.rename(array)


def _read_found(store: Store) -> dict[str, float]:
    try:
        found = json.loads((store.files / _FOUND).read_text("utf-8"))
        return {str(name): float(at) for name, at in found.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}  # the days begin anew


def _is_needed(store: Store, path: Path) -> bool:
    """Whether a data set has this array; of some only the histogram is kept."""
    table, key = schema.lengths, path.name.split(".")[0]
    if path.suffix == ".removed" and lengths_path(store, key).exists():
        return False  # removed, and uploaded again
    with store.reading() as connection:
        kind = connection.execute(select(table.c.kind).where(table.c.id == key)).scalar()
    return kind == "sequences"


def _parse_name(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if name.fullmatch(path.name))


def _is_upload(folder: Path) -> bool:
    """Whether a folder has nothing but the body of an upload."""
    return folder.is_dir() and all(entry.name.startswith("body.") for entry in folder.iterdir())


def _last_change(path: Path) -> float:
    """Return when a file, or a folder with its entries, was written (Unix time; inf if gone)."""
    try:
        entries = [path, *path.iterdir()] if path.is_dir() else [path]
        return max(entry.stat().st_mtime for entry in entries)
    except FileNotFoundError:
        return math.inf


def _remove(store: Store, path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif ARRAY.fullmatch(path.name):
        # The same data may be coming in just now, and find its array there.
        with store.writing():
            if not _is_needed(store, path):
                path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
