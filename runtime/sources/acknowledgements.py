"""Acknowledgements on their way to a planning service, kept on disk while it is away.

One file for each process, of JSON lines, each written and synced before the trainer goes on. A file
whose process has ended is taken over by the next process of the same job on the same machine.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import json
import os
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from seqplan.plans.service_routes import RETRIED
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.sources.http_connection import HttpResponse

OUTAGE_S = 420.0
"""How long a planning service may be away, in seconds, before the job ends with an error."""

FIRST_TRY_S = 1.0
"""Seconds for which an acknowledgement is sent again before it is queued."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 15.0

REPEATED_AFTER_S = 10.0
"""Seconds after which the last acknowledgement is sent again if the next plan is not there."""


class ServiceBehind(Exception):
    """The service has no plan of a step that was done: its store is restored from a backup.

    ``last_step``: the last step that it has a plan of; −1 for none.
    """

    def __init__(self, last_step: int) -> None:
        super().__init__(f"it has plans up to step {last_step} only, as after a restore")
        self.last_step = last_step


def default_folder() -> Path:
    """Return this user's folder for queued acknowledgements in the temporary folder."""
    return Path(tempfile.gettempdir()) / f"seqplan-acknowledgements-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One request: path, idempotency key, body, and its subject in messages."""

    path: str
    key: str
    body: str
    subject: str


class AcknowledgementFile:
    """Acknowledgements that are not received yet, in a file of this process alone."""

    def __init__(self, folder: Path, job: str) -> None:
        self.entries: deque[Acknowledgement] = deque()
        self.adopted: set[Acknowledgement] = set()
        self.path: Path | None = None
        self._folder = folder
        self._job = hashlib.sha256(job.encode()).hexdigest()[:16]
        self._file: BinaryIO | None = None

    def append(self, entry: Acknowledgement) -> None:
        """Add an acknowledgement; it is on disk when this returns. ``OSError``."""
        if self._file is None:
            with self._lock_folder():
                descriptor, name = tempfile.mkstemp(".jsonl", f"{self._job}-", self._folder)
                self.path, self._file = Path(name), os.fdopen(descriptor, "wb", buffering=0)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        end = self._file.seek(0, os.SEEK_END)
        line = json.dumps(asdict(entry)).encode() + b"\n"
        try:
            if (written := self._file.write(line)) != len(line):
                raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes written")
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)  # a part of a line would hide those after it
            raise
        self.entries.append(entry)

    def remove_first(self) -> None:
        """Remove the first; the file becomes empty with the last."""
        self.entries.popleft()
        if not self.entries and self._file is not None:
            self._file.seek(0)
            self._file.truncate()

    def adopt_left(self) -> None:
        """Take over the files of processes of this job that have ended. ``OSError``."""
        if not self._folder.is_dir():
            return
        with self._lock_folder():
            left = [path for path in self._folder.glob(f"{self._job}-*") if path != self.path]
            owned = [(path, file) for path in left if (file := _open_unowned(path)) is not None]
        for path, file in owned:
            with file:
                for entry in _read(file):
                    if entry not in self.adopted:  # by a try that met an error
                        self.append(entry)
                        self.adopted.add(entry)
                path.unlink()

    def close(self) -> None:
        """Remove an empty file; leave another to the next process of the job."""
        if self._file is None or self.path is None:
            return
        if not self.entries:
            self.path.unlink(missing_ok=True)
        self._file.close()
        self._file = None

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder == default_folder() and self._folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._folder} belongs to another user: set queue_folder")
        with (self._folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _open_unowned(path: Path) -> BinaryIO | None:
    try:
        file = path.open("rb")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _read(file: BinaryIO) -> Iterator[Acknowledgement]:
    for line in file:
        try:
            entry = Acknowledgement(**json.loads(line))
        except (ValueError, TypeError):
            return  # the last line of a process that was killed while it wrote
        yield entry


class AcknowledgementSender:
    """Sends acknowledgements in order, each until the service has received it.

    ``send`` makes one request and may raise ``OSError``, ``HTTPException`` and ``ServiceBehind``;
    ``outage_s``: seconds that the service may be away, or behind without progress. Two threads may
    use it.
    """

    def __init__(
        self,
        send: Callable[[Acknowledgement], HttpResponse],
        rejection: Callable[[HttpResponse, str], Exception],
        file: AcknowledgementFile,
        outage_s: float,
    ) -> None:
        self._send, self._rejection = send, rejection
        self._file, self._outage_s = file, outage_s
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._next_try = 0.0
        self._pause = FIRST_PAUSE_S
        self._trouble = ""
        self._failure: Exception | None = None
        self._has_adopted = False
        self._last: dict[str, Acknowledgement] = {}
        self._behind_at: int | None = None
        self._received_at = time.monotonic()

    @property
    def is_behind(self) -> bool:
        """Whether the service has yet to plan a step that was acknowledged."""
        return self._behind_at is not None

    @property
    def has_queued(self) -> bool:
        """Whether acknowledgements wait for the service."""
        return bool(self._file.entries)

    def add(self, entry: Acknowledgement, sender: str) -> None:
        """Send an acknowledgement of ``sender``, or queue it while the service is away.

        ``PlanTimeout`` if it has been away for longer than ``outage_s``, ``PlanError`` if it
        rejects one, or the queue cannot be written.
        """
        with self._lock:
            self._last[sender] = entry
            first_try_ends = time.monotonic() + min(FIRST_TRY_S, self._outage_s)
            while not self.has_queued and time.monotonic() < first_try_ends:
                if self._try(entry):
                    return
                time.sleep(max(0.0, min(self._next_try, first_try_ends) - time.monotonic()))
            try:
                self._file.append(entry)
            except OSError as error:
                raise PlanError(f"{entry.subject}: cannot be queued: {error}") from None
            if self._is_away_too_long():
                self._next_try = 0.0  # it may be back since the last try
            self._send_due()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._is_away_too_long():
                raise PlanTimeout(
                    f"{entry.subject}: not received for {self._outage_s:g} s, at last "
                    f"{self._trouble}; {len(self._file.entries)} are kept in {self._file.path}"
                )

    def repeat_last(self) -> None:
        """Send the last acknowledgement of each sender again: a restored store lacks it."""
        due = time.monotonic() >= self._received_at + REPEATED_AFTER_S
        if self.has_queued or not due or not self._lock.acquire(blocking=False):
            return
        try:
            for entry in self._last.values():
                if not self._try(entry):
                    self._file.append(entry)
        except OSError as error:
            warnings.warn(f"acknowledgements cannot be queued: {error}", stacklevel=2)
        finally:
            self._lock.release()

    def send_queued(self) -> None:
        """Send what waits, if it is time for another try; those of ended processes first."""
        done = self._has_adopted and not self.has_queued
        if done or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._has_adopted:
                self._file.adopt_left()
                self._has_adopted = True
            self._next_try = 0.0  # the service has just answered
            self._send_due()
        except OSError as error:
            warnings.warn(f"queued acknowledgements cannot be read: {error}", stacklevel=2)
        finally:
            self._lock.release()

    def close(self, timeout_s: float) -> None:
        """Send what waits within ``timeout_s``; the next process of the job sends the rest."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self.has_queued and self._failure is None and time.monotonic() < deadline:
                self._next_try = 0.0
                self._send_due()
                if self.has_queued:
                    time.sleep(min(0.2, timeout_s))
            left = len(self._file.entries)
            self._file.close()
        if left:
            warnings.warn(
                f"{left} acknowledgements are not received: {self._failure or self._trouble}; they "
                f"are kept in {self._file.path} for the job's next start",
                stacklevel=3,
            )

    def _is_away_too_long(self) -> bool:
        since = self._away_since
        return since is not None and time.monotonic() - since >= self._outage_s

    def _send_due(self) -> None:
        dropped: list[Exception] = []
        while self.has_queued and time.monotonic() >= self._next_try:
            first = self._file.entries[0]
            try:
                if not self._try(first):
                    break
            except (PlanError, EndOfPlans) as rejected:
                if first in self._file.adopted:  # the job that sent it has ended
                    dropped.append(rejected)
                else:
                    self._failure = self._failure or rejected
            self._file.remove_first()
        if dropped:
            count = f"{len(dropped)} queued by a process that ended"
            warnings.warn(f"acknowledgements dropped, {count}: {dropped[0]}", stacklevel=2)

    def _try(self, entry: Acknowledgement) -> bool:
        """Send one; False if the service is away, the rejection raised if it rejects it."""
        retry_after, begun = 0.0, time.monotonic()
        try:
            answer = self._send(entry)
            if answer.status not in RETRIED:
                self._away_since, self._pause, self._behind_at = None, FIRST_PAUSE_S, None
                if 200 <= answer.status < 300:
                    self._received_at = time.monotonic()
                    return True
                raise self._rejection(answer, entry.subject)
            self._trouble, retry_after = f"{answer.status} {answer.reason}", answer.retry_after_s
        except ServiceBehind as behind:
            self._note_behind(entry, behind)
        except (OSError, http.client.HTTPException) as error:
            self._trouble = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
        if self._away_since is None:
            self._away_since = begun
        self._next_try = time.monotonic() + max(self._pause, retry_after)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        return False

    def _note_behind(self, entry: Acknowledgement, behind: ServiceBehind) -> None:
        self._trouble = str(behind)
        if self._behind_at is None:
            warnings.warn(f"{entry.subject}: waits for the service: {behind}", stacklevel=2)
        if behind.last_step != self._behind_at:  # it plans on
            self._away_since, self._pause = None, FIRST_PAUSE_S
            self._behind_at = behind.last_step
