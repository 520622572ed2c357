"""One service at a time has a SQLite store: the locks by which it does.

The database itself is locked, by whatever path it is reached, and so is the folder of its arrays.
The file in that folder says, once the database has its tables, that there was a store: a database
that is empty afterwards has lost what it held.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from seqplan.api.store.errors import StoreError

_WAS_THERE = b"a store has its arrays here\n"


class Ownership:
    """Holds the locks of the SQLite file ``database`` and of ``files`` until it is given up.

    ``StoreError`` where another service has one of them, and for a database that has lost what it
    held; ``OSError`` where a file cannot be had. ``where``: the store's name in messages.
    """

    def __init__(self, database: Path, files: Path, where: str) -> None:
        self._held: list[int] = []
        new = not database.exists()
        was_empty = not new and database.stat().st_size == 0
        try:
            # SQLite's own locks are of another kind, which this one does not meet.
            self._take(database, 0o644, f"{where}: another service")
            self._folder = self._take(files / "lock", 0o600, f"{files}: another store's service")
            if was_empty and os.pread(self._folder, 1, 0):
                raise StoreError(
                    f"{where}: is empty, but {files} belongs to a store: put a copy of the "
                    "database back, or remove both to begin anew"
                )
        except BaseException:
            if new and self._held:
                database.unlink(missing_ok=True)
            self.give_up()
            raise

    def _take(self, path: Path, mode: int, who: str) -> int:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self._held.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseElsewhere(f"{who} is using this store; stop it, or name another") from None
        return lock

    def has_tables(self) -> None:
        """Note that the database has its tables, and is not to be found empty again."""
        with suppress(OSError):  # a full disk: the next start notes it
            os.pwrite(self._folder, _WAS_THERE, 0)

    def give_up(self) -> None:
        """Let go of the locks."""
        while self._held:
            os.close(self._held.pop())


class InUseElsewhere(StoreError):
    """Another service has the store."""
