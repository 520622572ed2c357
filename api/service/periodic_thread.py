"""A thread that looks at the store from time to time, whatever a single look meets."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from seqplan.api.store.errors import StoreUnavailable


class PeriodicThread(ABC):
    """Calls ``look`` now and every ``every_s`` seconds, in a separate thread, until stopped.

    ``failure``: the line of ``log`` about a look that raises; the next look comes all the same.
    """

    def __init__(self, name: str, every_s: float, log: logging.Logger, failure: str) -> None:
        self._name, self._every_s, self._log, self._failure = name, every_s, log, failure
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def look(self) -> None:
        """Do all that is due."""

    def start(self) -> None:
        """Begin, in a separate thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def wake(self) -> None:
        """Look now."""
        self._wanted.set()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended before its time."""
        return self._thread is not None and not (self._thread.is_alive() or self._stopping.is_set())

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.clear()
            try:
                self.look()
            except StoreUnavailable:
                pass  # the store logs it; the next look may find it again
            except Exception:
                self._log.exception("%s", self._failure)
            self._wanted.wait(self._every_s)
