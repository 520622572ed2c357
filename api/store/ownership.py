"""One service at a time has a SQLite store, and a folder of arrays belongs to one store.

The database itself is locked, by whatever path it is reached, and so is the folder of its arrays.
The folder's mark is the id of its store, which the database has, too.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError, StoreUnavailable

MARK = "store-id"
"""The file of a folder that has its store's id."""

_LOCK = "lock"
ARRAY = re.compile(r"([0-9a-f]{64})\.(npy|removed)")


@dataclass(frozen=True)
class FolderMark:
    """The mark of ``files``; ``where``: the store's name in messages."""

    files: Path
    where: str

    def check_new(self) -> None:
        """Raise ``StoreError`` if the folder belongs to a store, as this one has no database."""
        if self._id() is not None or self._arrays():
            raise StoreError(
                f"{self.where}: is new, but {self.files} belongs to a store. Name that store's "
                "database, or another folder with --files (remove the folder to begin anew)."
            )

    def remove_new(self, created: Sequence[Path]) -> None:
        """Remove empty folders that were created for a store that cannot be opened.

        ``created``: the innermost first.
        """
        if self.files in created:
            (self.files / _LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            for folder in created:
                folder.rmdir()

    def check(self, connection: Connection) -> None:
        """Raise ``StoreError`` if the folder belongs to another store than the database's."""
        expected, marked = store_id(connection), self._id()
        if marked is not None:
            if marked != expected:
                raise StoreError(
                    f"{self.files}: belongs to another store than {self.where}. Name the store's "
                    "folder with --files."
                )
            return
        there, kinds = self._arrays(), _read_kinds(connection)
        if unknown := sorted(there - kinds.keys()):
            raise StoreError(
                f"{self.files}: has no mark, and {self.where} does not know its array "
                f"{unknown[0]}. Name the store's folder with --files, or move the array away."
            )
        if "sequences" in kinds.values() and not there:
            raise StoreError(
                f"{self.files}: has none of the arrays of {self.where}. Name their folder with "
                f"--files; if they are lost: mkdir -p {self.files} && echo {expected} > "
                f"{self.files / MARK}"
            )

    def write(self, connection: Connection) -> None:
        """Mark the folder as the database's, unless it is."""
        if self._id() is None:
            # Whole or not at all; several services of a shared store write the same.
            path = self.files / f".{MARK}.{os.getpid()}"
            path.write_text(f"{store_id(connection)}\n", "ascii")
            os.replace(path, self.files / MARK)

    def _id(self) -> str | None:
        try:
            return (self.files / MARK).read_text("ascii", errors="replace").strip()
        except FileNotFoundError:
            return None

    def _arrays(self) -> set[str]:
        """Return the ids of the arrays in the folder."""
        with suppress(FileNotFoundError):
            found = (ARRAY.fullmatch(path.name) for path in (self.files / "lengths").iterdir())
            return {match[1] for match in found if match and match[2] == "npy"}
        return set()


def store_id(connection: Connection) -> str:
    """Return the id of the store."""
    return str(connection.execute(select(schema.store.c.id)).scalar_one())


def _read_kinds(connection: Connection) -> dict[str, str]:
    """Read the kinds of all data sets."""
    table = schema.lengths
    return {row.id: row.kind for row in connection.execute(select(table.c.id, table.c.kind))}


_PRIVATE = 0o600
"""Mode of the database, its log and the lock: other users of the machine do not read plans."""


class Ownership:
    """Holds the locks of the SQLite file ``database`` and of ``mark``'s folder until given up.

    ``folder``: whether that is locked too. ``StoreError`` if another service has one of them, and
    for a new or empty database next to a folder that belongs to a store; ``OSError`` if a file
    cannot be opened.
    """

    def __init__(self, database: Path, mark: FolderMark, *, folder: bool) -> None:
        self._held: list[tuple[Path, int]] = []
        self._new = None if database.exists() else database
        was_empty = self._new is not None or database.stat().st_size == 0
        try:
            # SQLite's locks are of another kind, which this one does not meet.
            lock = self._take(database, f"{mark.where}: another service")
            with suppress(PermissionError):  # another user's, who let this one write
                os.fchmod(lock, _PRIVATE)
            if folder:
                self._take(mark.files / _LOCK, f"{mark.files}: another store's service")
            if was_empty:
                mark.check_new()
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Release the locks, and remove a database that was made with them."""
        if self._new is not None and self._held:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._new}{suffix}").unlink(missing_ok=True)
        self.give_up()

    def _take(self, path: Path, who: str) -> int:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        self._held.append((path, lock))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseElsewhere(f"{who} is using this store; stop it, or name another") from None
        return lock

    def check_in_place(self) -> None:
        """Raise ``StoreUnavailable`` if a locked file was moved or removed."""
        for path, lock in self._held:
            there = None
            with suppress(OSError):
                there = os.stat(path)
            if there is None or not os.path.samestat(there, os.fstat(lock)):
                raise StoreUnavailable(describe_removed(path))

    def give_up(self) -> None:
        """Let go of the locks."""
        while self._held:
            os.close(self._held.pop()[1])


def describe_removed(path: Path) -> str:
    """Write the error of a part of the store that was removed while in use."""
    return (
        f"{path}: was removed or replaced while in use. Move it back, or stop the service and "
        "restore a backup (seqplan restore)"
    )


class InUseElsewhere(StoreError):
    """Another service has the store."""
