"""A copy of a SQLite store in one file, made while a service uses it, and the way back.

The file is a tar archive: ``backup.json`` (format, versions, sha256 of the database), ``store.db``,
then the folder of arrays, whose names are the sha256 of their contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from seqplan.api.store.errors import StoreError
from seqplan.api.store.migrations import check_schema
from seqplan.api.store.ownership import ARRAY, MARK
from seqplan.api.store.read_only import open_database
from seqplan.plans.format.atomic_file import atomic_write, flush_folder
from seqplan.plans.version import VERSION

FORMAT = 1
_ABOUT, _DATABASE, _FILES = "backup.json", "store.db", "files"
_PRIVATE = 0o600
_TRIES = 5
_ANOTHER = "Name another backup"


def write_backup(database: Path, files: Path, output: Path) -> int:
    """Write the store at ``database`` and its folder ``files`` to ``output``; return the arrays.

    A service may be using the store: the copy has its state at one moment. ``StoreError`` if the
    folder is not the store's.
    """
    with closing(open_database(database)) as source:
        expected = source.execute("SELECT id FROM seqplan_store").fetchone()[0]
        _check_folder(database, files, expected)
        with (
            tempfile.TemporaryDirectory(prefix=".backup-", dir=output.parent) as folder,
            atomic_write(output, "wb") as file,
        ):
            os.fchmod(file.fileno(), _PRIVATE)
            copy = Path(folder) / _DATABASE
            for _ in range(_TRIES):
                # An array that is removed meanwhile may be one of the copied database: once more.
                before = _list_arrays(files)
                _copy_database(source, copy)
                file.seek(0)
                file.truncate()
                with suppress(FileNotFoundError):
                    if not before - (arrays := _list_arrays(files)):
                        _write_archive(file, copy, files, sorted(arrays))
                        return len(arrays)
            raise StoreError(f"{files}: arrays are removed all the time. Try again later")


def restore_backup(backup: Path, database: Path, files: Path) -> int:
    """Make the store of ``backup`` at ``database`` and ``files``; return the number of arrays.

    ``StoreError`` if either is there, and for a file that is no whole backup. The database appears
    last: the store is whole, or there is none.
    """
    for path in (database, Path(f"{database}-wal"), Path(f"{database}-shm"), files):
        if os.path.lexists(path):
            raise StoreError(f"{path}: exists. Move it away, or name another store")
    for parent in (database.parent, files.parent):
        if not parent.is_dir():
            raise StoreError(f"{parent}: is no folder. Make it, or name another store")
    with _new_folder(files.parent) as arrays, _new_folder(database.parent) as folder:
        count = _extract(backup, folder / _DATABASE, arrays)
        _check_database(backup, folder / _DATABASE, arrays)
        os.rename(arrays, files)
        try:
            os.link(folder / _DATABASE, database)  # unlike a rename it replaces nothing
        except BaseException:
            os.rename(files, arrays)
            raise
        flush_folder(database.parent)
    return count


def _check_folder(database: Path, files: Path, expected: str) -> None:
    try:
        marked = (files / MARK).read_text("ascii", errors="replace").strip()
    except OSError as error:
        raise StoreError(
            f"{files}: is no folder of a store ({error.strerror}). Name it with --files"
        ) from None
    if marked != expected:
        raise StoreError(f"{files}: belongs to another store than {database}. Name its folder")


def _list_arrays(files: Path) -> set[str]:
    try:
        return {path.name for path in (files / "lengths").iterdir() if ARRAY.fullmatch(path.name)}
    except FileNotFoundError:
        return set()


def _copy_database(source: sqlite3.Connection, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise StoreError(f"{copy.parent.parent}: the store cannot be copied: {error}") from None


def _write_archive(file: IO[bytes], database: Path, files: Path, arrays: list[str]) -> None:
    about = {
        "format": FORMAT,
        "seqplan": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": _sha256(database),
    }
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        text = json.dumps(about).encode()
        entry = tarfile.TarInfo(_ABOUT)
        entry.size = len(text)
        archive.addfile(entry, BytesIO(text))
        archive.add(database, _DATABASE)
        archive.add(files / MARK, f"{_FILES}/{MARK}")
        for name in arrays:
            archive.add(files / "lengths" / name, f"{_FILES}/lengths/{name}")


def _extract(backup: Path, database: Path, files: Path) -> int:
    """Write the archive's database and arrays; return the number of arrays."""
    about: dict[str, Any] = {}
    count = 0
    (files / "lengths").mkdir()
    try:
        with tarfile.open(backup, "r:") as archive:
            for entry in archive:
                path = _find_place(entry, database, files)
                source = archive.extractfile(entry) if entry.isreg() else None
                if path is None or source is None:
                    raise StoreError(f"{backup}: is no backup: it has {entry.name!r}. {_ANOTHER}")
                if entry.name == _ABOUT:
                    about = json.load(source)
                    continue
                with atomic_write(path, "wb") as target:
                    os.fchmod(target.fileno(), _PRIVATE)
                    shutil.copyfileobj(source, target)
                count += path.parent.name == "lengths"
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{backup}: is no whole backup: {error}. {_ANOTHER}") from None
    if about.get("format") != FORMAT:
        raise StoreError(f"{backup}: is no backup of format {FORMAT}. Use the seqplan that made it")
    if not database.exists() or about.get("sha256") != _sha256(database):
        raise StoreError(f"{backup}: is damaged: its database has another sha256. {_ANOTHER}")
    return count


def _find_place(entry: tarfile.TarInfo, database: Path, files: Path) -> Path | None:
    """Return where a member of the archive goes; None for one that no backup has."""
    if entry.name in (_ABOUT, _DATABASE):
        return database
    if entry.name == f"{_FILES}/{MARK}":
        return files / MARK
    folder, _, name = entry.name.rpartition("/")
    if folder == f"{_FILES}/lengths" and ARRAY.fullmatch(name):
        return files / "lengths" / name
    return None


def _check_database(backup: Path, database: Path, files: Path) -> None:
    with closing(open_database(database)) as opened:
        (found,) = opened.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreError(f"{backup}: is damaged: {found}. {_ANOTHER}")
        (schema,) = opened.execute("SELECT version FROM seqplan_schema").fetchone()
        check_schema(schema, str(backup))
        expected = opened.execute("SELECT id FROM seqplan_store").fetchone()[0]
    _check_folder(database, files, expected)


@contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    """A private folder in ``parent``, removed at the end unless it was renamed."""
    path = Path(tempfile.mkdtemp(prefix=".restore-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
