"""Whether a store can be written to, as its last transactions have shown."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("seqplan.store")


class Health:
    """Logs a line when writes to the store ``where`` begin to fail or succeed again."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self.opened = False
        """Whether the store is open; until then its opener reports what fails."""
        self.problem: str | None = None
        """Why the last transaction that writes failed; None if it did not."""
        self.failures = 0

    def note_failure(self, reason: str) -> None:
        """Note that the store could not be written to."""
        if not self.opened:
            return
        with self._lock:
            self.failures += 1
            begins, self.problem = self.problem is None, reason
        if begins:
            _log.error("%s: cannot be written to: %s", self._where, reason)

    def note_success(self) -> None:
        """Note that a transaction is on disk."""
        if self.problem is None:
            return
        with self._lock:
            ends, self.problem = self.problem is not None, None
        if ends:
            _log.warning("%s: can be written to again", self._where)
