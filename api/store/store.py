"""Opening a store and its transactions: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from seqplan.api.store.errors import StoreError, StoreUnavailable
from seqplan.api.store.migrations import migrate

_BUSY_MS = 5000


class Store:
    """A store at ``url``: a path, ``sqlite:///path`` or ``postgresql+psycopg://…``.

    ``files``: the folder of uploaded arrays; by default ``PATH.files`` beside a SQLite file. A
    transaction that ended without error is on disk (WAL with synchronous=FULL: an acknowledged
    write survives a power cut, not only a killed process). ``StoreError`` when it cannot be opened,
    or another service holds it.
    """

    def __init__(self, url: str, files: Path | None = None) -> None:
        self.where, database = _parsed(url)
        if files is None:
            if database is None:
                raise StoreError(f"{self.where}: name a folder for uploaded arrays with --files")
            files = Path(f"{database}.files")
        self.files = files
        self._writing = threading.Lock()
        try:
            (files / "lengths").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(files / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{files}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(
                f"{self.where}: another service is using this store; stop it, or name another"
            ) from None
        try:
            self._engine = _engine(url, database)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, ImportError):
                raise StoreError(f"{self.where}: cannot be opened: {error}") from None
            raise
        try:
            with self.writing() as connection:
                migrate(connection, self.where)
        except BaseException as error:
            self.close()
            if isinstance(error, StoreUnavailable):
                raise StoreError(f"{self.where}: cannot be opened: {error}") from None
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads. ``StoreUnavailable``."""
        with _available(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that may write; on disk when it ends. ``StoreUnavailable``."""
        with _available(), self._writing, self._engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Let go of the database and of the lock."""
        self._engine.dispose()
        os.close(self._lock)


def _parsed(url: str) -> tuple[str, str | None]:
    """The store's name for messages (no password), and the path of a SQLite file."""
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
        raise StoreError(f"{shown}: wants sqlite or postgresql")
    return shown, None


def _engine(url: str, database: str | None) -> Engine:
    if database is None:
        try:
            return create_engine(url, pool_pre_ping=True)
        except NoSuchModuleError as error:
            raise StoreError(f"{_parsed(url)[0]}: {error}") from None
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": _BUSY_MS / 1000})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions are begun below, DDL among them
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: Connection) -> None:
    # A reader that turns writer can be refused at once: writers say so from the start.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()
        raise StoreUnavailable(reason[0] if reason else type(error.orig).__name__) from error
