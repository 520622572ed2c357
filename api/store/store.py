"""Opening a store and its transactions: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, make_url, select, update
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from seqplan.api.store import compaction, schema
from seqplan.api.store.errors import StoreError, StoreUnavailable, outages
from seqplan.api.store.health import Health
from seqplan.api.store.migrations import migrate
from seqplan.api.store.ownership import FolderMark, InUseElsewhere, Ownership, describe_removed

CHANNEL = "seqplan"


_REMOVED = "/"  # no id in an HTTP request has it


def notify(connection: Connection, job: str) -> None:
    """Announce, when the transaction ends, a change of ``job``. Nobody listens at SQLite."""
    if connection.dialect.name == "postgresql":
        origin = connection.get_execution_options()["origin"]
        connection.execute(select(func.pg_notify(CHANNEL, f"{origin} {job}")))


def notify_removed(connection: Connection, job: str) -> None:
    """Announce, when the transaction ends, that ``job`` was removed."""
    notify(connection, _REMOVED + job)


def removed_job(notice: str) -> str | None:
    """Return the job that was removed by a notice; None for any other notice."""
    return notice.removeprefix(_REMOVED) if notice.startswith(_REMOVED) else None


_BUSY_MS = 5000

CHECKED_S = 1.0
"""How long a store that could be written to is taken to be so by probes."""

_LOG_BYTES = 64 << 20
"""Size to which SQLite's log is cut once it has been longer."""

_UNBOUNDED = -1
"""Connections beyond those that are kept: planning has one a job, requests one a thread, and a
thread that had to wait for another's would be kept from planning by whoever reads slowly."""


class Store:
    """A store at ``url``: a path, ``sqlite:///path`` or ``postgresql+psycopg://…``.

    ``files``: the folder of uploaded arrays; by default ``PATH.files`` next to a SQLite file. A
    transaction that ended without error is on disk (WAL with synchronous=FULL: an acknowledged
    write survives a power cut, not only a killed process). One service at a time uses a SQLite
    file, however its path is spelled; several may share a PostgreSQL database, and then share
    ``files`` too, which are marked as the store's. ``in_use``: open the tables of a
    store that a service may be using. ``StoreError`` when it cannot be opened, another service
    holds it, or ``files`` belong to another store.
    """

    def __init__(self, url: str, files: Path | None = None, *, in_use: bool = False) -> None:
        self.where, database = parse_address(url)
        if files is None:
            if database is None:
                raise StoreError(
                    f"{self.where}: name a folder for uploaded arrays with --files (files in a "
                    "job file)"
                )
            files = default_files(database)
        self.files = files
        self.shared = database is None
        """Whether other services may be using this store now."""
        self._database = database
        self._turns = Turns()
        self.health = Health(self.where)
        self._checking = threading.Lock()
        self._checked_at = -math.inf
        mark = FolderMark(files, self.where)
        created = [] if in_use else self._create_folders()
        try:
            self._open(url, database, mark, in_use=in_use)
        except BaseException:
            mark.remove_new(created)
            raise

    def _create_folders(self) -> list[Path]:
        """Create the folders of arrays; return the new ones, the innermost first."""
        files = self.files
        if not files.absolute().parent.is_dir():
            raise StoreError(f"{files}: the folder {files.parent} does not exist. Create it")
        folders = [files / "lengths", files]
        created = [folder for folder in folders if not folder.exists()]
        try:
            # Private to one service, unless several share it.
            files.mkdir(0o777 if self.shared else 0o700, exist_ok=True)
            folders[0].mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"{files}: cannot be written: {error.strerror}") from None
        return created

    def _open(self, url: str, database: str | None, mark: FolderMark, *, in_use: bool) -> None:
        self._ownership = None if database is None else self._own(Path(database), mark, in_use)
        try:
            self._engine = _engine(url, database)
        except BaseException as error:
            self._give_up()
            if isinstance(error, ImportError):
                raise StoreError(f"{self.where}: cannot be opened: {error}") from None
            raise
        try:
            self._prepare(mark, database, in_use=in_use)
        except BaseException as error:
            self._engine.dispose()
            if self._ownership is not None:
                self._ownership.undo()
            if isinstance(error, StoreUnavailable):
                raise StoreError(f"{self.where}: cannot be opened: {error}") from None
            if isinstance(error, DBAPIError | UnicodeDecodeError):
                reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
                raise StoreError(f"{self.where}: is damaged, or no store: {reason}") from None
            raise

    def _prepare(self, mark: FolderMark, database: str | None, *, in_use: bool) -> None:
        """Bring the tables to this version, and mark the folder of arrays as the store's."""
        alone = self.shared or self._ownership is not None
        if database is not None and not in_use:
            compaction.prepare(self._engine, Path(database))
        with self.writing() as connection:
            if migrate(connection, self.where, alone=alone) == 0:
                mark.check_new()
            elif not in_use:
                mark.check(connection)
        if in_use:
            return
        # After the end of that transaction: no folder has the mark of a store that is not there.
        with self.reading() as connection, suppress(OSError):  # a full disk: the next start does it
            mark.write(connection)
        self.health.opened = True

    def _own(self, database: Path, mark: FolderMark, in_use: bool) -> Ownership | None:
        try:
            return Ownership(database, mark, folder=not in_use)
        except InUseElsewhere:
            if in_use:
                return None
            raise
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be written: {error.strerror}") from None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that only reads. ``StoreUnavailable``."""
        self._check_in_place()
        with outages(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, background: bool = False) -> Iterator[Connection]:
        """Begin a transaction that may write; on disk when it ends. ``StoreUnavailable``.

        ``background``: begins only while no other writer of this process waits.
        """
        # SQLite has one writer at a time: better to wait here than to find it locked.
        turn = nullcontext() if self.shared else self._turns.take(background=background)
        with self._watch_changes(), turn, self._engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with self._transaction(connection):
                yield connection

    @contextmanager
    def _watch_changes(self) -> Iterator[None]:
        try:
            self._check_in_place()
            with outages():
                yield
        except StoreUnavailable as error:
            self.health.note_failure(str(error))
            raise

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """Begin a transaction. One that changes nothing does not show that the disk has room."""
        before = _count_changes(connection)
        with connection.begin():
            yield
        if before is None or _count_changes(connection) != before:
            self.health.note_success()

    def check_writable(self) -> None:
        """Write to the store, once a second at most; ``StoreUnavailable`` if that fails."""
        with self._checking:
            if self.health.problem is None and time.monotonic() - self._checked_at < CHECKED_S:
                return
            table = schema.store
            with self.writing() as connection:
                self.check_folder()
                self._write_to_folder()
                connection.execute(update(table).values(checks=table.c.checks + 1))
            self._checked_at = time.monotonic()

    def check_folder(self) -> None:
        """Raise ``StoreUnavailable`` if the folder of arrays is missing."""
        if not (folder := self.files / "lengths").is_dir():
            raise StoreUnavailable(describe_removed(folder))

    def _write_to_folder(self) -> None:
        """Write a file without a name: SQLite's log may have room on a disk that is full."""
        try:
            with tempfile.TemporaryFile(dir=self.files / "lengths") as file:
                file.write(bytes(4096))
        except OSError as error:
            raise StoreUnavailable(f"{self.files}: {error.strerror}") from None

    def _check_in_place(self) -> None:
        """Raise ``StoreUnavailable`` if a SQLite file or its folder was moved or removed."""
        if self._ownership is not None:
            self._ownership.check_in_place()

    def size_bytes(self) -> int | None:
        """Return the size of the SQLite files, with the log of changes; None for PostgreSQL."""
        if self._database is None:
            return None
        total = 0
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                total += os.stat(f"{self._database}{end}").st_size
        return total

    @contextmanager
    def claim(self, subject: str) -> Iterator[Claim | None]:
        """Take the right to do ``what``, which one service has at a time; None: another has it.

        It ends with the block, with the process, or with the connection to the database.
        ``StoreUnavailable``.
        """
        if not self.shared:
            yield Claim(self.writing)  # nobody else uses this store
            return
        key = int.from_bytes(hashlib.sha256(subject.encode()).digest()[:8], signed=True)
        with outages(), self._engine.connect() as connection:
            with connection.begin():
                query = select(func.pg_try_advisory_lock(key))
                locked = connection.execute(query).scalar()
            if not locked:
                yield None
                return

            @contextmanager
            def writing(*, background: bool = False) -> Iterator[Connection]:
                # On the connection that holds the claim: without the claim nothing is written.
                with self._watch_changes(), self._transaction(connection):
                    yield connection

            try:
                yield Claim(writing)
            finally:
                # Never back into the pool, with or without the lock: closing gives it up.
                connection.invalidate()

    def notices(self, every_s: float) -> Iterator[str | None]:
        """Yield the jobs in which other services have written, as they do; None every ``every_s``.

        ``StoreUnavailable``. Without other services there are no notices.
        """
        if not self.shared:
            while True:
                time.sleep(every_s)
                yield None
        with outages(), self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            driver: Any = connection.connection.driver_connection
            origin = self._engine.get_execution_options()["origin"]
            while True:
                for notice in driver.notifies(timeout=every_s, stop_after=1):
                    sender, _, job = notice.payload.partition(" ")
                    if sender != origin:
                        yield job
                        break
                else:
                    yield None

    def close(self) -> None:
        """Let go of the database and of the locks."""
        self._engine.dispose()
        self._give_up()

    def _give_up(self) -> None:
        if self._ownership is not None:
            self._ownership.give_up()


@dataclass(frozen=True)
class Claim:
    """``writing``: a transaction that is only possible while the claim holds."""

    writing: Callable[..., AbstractContextManager[Connection]]


def default_files(database: str) -> Path:
    """Return the folder of arrays of a SQLite file: next to it, or to its link's target."""
    files = Path(f"{database}.files")
    if Path(database).is_symlink() and not files.exists():
        return Path(f"{os.path.realpath(database)}.files")
    return files


def parse_address(url: str) -> tuple[str, str | None]:
    """Return the store's name for messages (no password), and the path of a SQLite file."""
    if "://" not in url:
        return url, url
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(f"--store: {url!r} is neither a path nor a database URL") from None
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StoreError(f"{shown}: names no file; a store in memory would lose plans")
        return shown, parsed.database
    if parsed.get_backend_name() != "postgresql":
        raise StoreError(f"{shown}: must be sqlite or postgresql")
    return shown, None


def _engine(url: str, database: str | None) -> Engine:
    if database is None:
        try:
            engine = create_engine(url, pool_pre_ping=True, max_overflow=_UNBOUNDED)
            return engine.execution_options(origin=secrets.token_hex(8))
        except NoSuchModuleError as error:
            raise StoreError(f"{parse_address(url)[0]}: {error}") from None
    engine = create_engine(
        f"sqlite:///{database}", connect_args={"timeout": _BUSY_MS / 1000}, max_overflow=_UNBOUNDED
    )
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun below, DDL among them
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
    connection.execute("PRAGMA synchronous=FULL")


def _count_changes(connection: Connection) -> int | None:
    """Count the rows that a connection to SQLite has changed; None for PostgreSQL."""
    return getattr(connection.connection.driver_connection, "total_changes", None)


def _begin(connection: Connection) -> None:
    # A reader that turns writer can be rejected at once: writers begin as such.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


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
