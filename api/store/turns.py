"""Turns of the writers of a SQLite file, which has one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Admits one writer at a time, one of the background only while no other waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._waiting = 0

    @contextmanager
    def take(self, *, background: bool = False) -> Iterator[None]:
        """Hold the turn for the block."""
        with self._changed:
            if background:
                self._changed.wait_for(lambda: not self._busy and not self._waiting)
            else:
                self._waiting += 1
                self._changed.wait_for(lambda: not self._busy)
                self._waiting -= 1
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
