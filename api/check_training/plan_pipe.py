"""Plans that a process reads from a named pipe as if it were a plan file, each when it may."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from pathlib import Path

from seqplan.plans.format.codec import to_json
from seqplan.plans.plan import Plan

_ENDING_S = 0.02


class PlanPipe:
    """A pipe, made at ``path``, from which one process reads lines as they come.

    A thread writes them, as a pipe holds little and its reader may be busy.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="plans", daemon=True)
        self._thread.start()

    def send(self, plan: Plan) -> None:
        """Let the reader have one more plan."""
        self._lines.put(to_json(plan) + "\n")

    def close(self) -> None:
        """End the thread; the reader must have ended."""
        self._lines.put(None)
        while self._thread.is_alive():
            # Where the thread waits for a reader, to come or to read on, there is one for a moment.
            os.close(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK))
            self._thread.join(_ENDING_S)

    def _write(self) -> None:
        # A reader that is gone is somebody else's to notice.
        with suppress(BrokenPipeError), open(self.path, "w", encoding="utf-8") as pipe:
            while (line := self._lines.get()) is not None:
                pipe.write(line)
                pipe.flush()
