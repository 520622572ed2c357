"""One service at a time has a SQLite store: the locks by which it does.

The database itself is locked, by whatever path it is reached, and so is the folder of its arrays.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from seqplan.api.store.errors import StoreError
from seqplan.api.store.folder_mark import FolderMark

_PRIVATE = 0o600
"""Mode of the database, its log and the lock: other users of the machine do not read plans."""


class Ownership:
    """Holds the locks of the SQLite file ``database`` and of ``mark``'s folder until given up.

    ``folder``: whether that is locked too. ``StoreError`` if another service has one of them, and
    for a new or empty database next to a folder that belongs to a store; ``OSError`` if a file
    cannot be opened. ``where``: the store's name in messages.
    """

    def __init__(self, database: Path, mark: FolderMark, where: str, *, folder: bool) -> None:
        self._held: list[int] = []
        self._new = None if database.exists() else database
        was_empty = self._new is not None or database.stat().st_size == 0
        try:
            # SQLite's locks are of another kind, which this one does not meet.
            lock = self._take(database, f"{where}: another service")
            with suppress(PermissionError):  # another user's, who let this one write
                os.fchmod(lock, _PRIVATE)
            if folder:
                self._take(mark.files / "lock", f"{mark.files}: another store's service")
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
        self._held.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseElsewhere(f"{who} is using this store; stop it, or name another") from None
        return lock

    def give_up(self) -> None:
        """Let go of the locks."""
        while self._held:
            os.close(self._held.pop())


class InUseElsewhere(StoreError):
    """Another service has the store."""
