"""Reading a SQLite store that a service may be using: nothing is written, nothing is locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from seqplan.api.store.errors import StoreError
from seqplan.api.store.migrations import SCHEMA, read_version
from seqplan.api.store.store import parse_address

_BUSY_S = 5.0


def find_database(url: str, instead: str) -> Path:
    """Return the path of a SQLite store's file.

    ``instead``: what to do with a PostgreSQL store. ``StoreError`` for one, and if there is no
    file.
    """
    where, database = parse_address(url)
    if database is None:
        raise StoreError(f"{where}: must be a SQLite store. {instead}")
    check_exists(url)
    return Path(database)


def check_exists(url: str) -> None:
    """Raise ``StoreError`` for a SQLite store without a file."""
    where, database = parse_address(url)
    if database is not None and not Path(database).is_file():
        raise StoreError(f"{where}: no such store. Name the file that serve --store has")


def open_database(path: Path) -> sqlite3.Connection:
    """Open an existing file to read from it; ``StoreError`` if it is no store."""
    try:
        database = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        database.execute("SELECT id FROM seqplan_store").fetchone()
    except sqlite3.Error as error:
        raise StoreError(f"{path}: cannot be read as a store: {error}") from None
    return database


@contextmanager
def reading(path: Path) -> Iterator[Connection]:
    """Begin a transaction that only reads the tables of this release's store.

    ``StoreError`` for a store of another release.
    """
    with closing(open_database(path)) as database:
        engine = create_engine("sqlite://", creator=lambda: database, poolclass=NullPool)
        try:
            database.execute("BEGIN")  # all queries see one state
            with engine.connect() as connection:
                if (found := read_version(connection)) != SCHEMA:
                    raise StoreError(
                        f"{path}: has schema {found}, this seqplan reads {SCHEMA}. Use "
                        "the seqplan of its service"
                    )
                yield connection
        except DBAPIError as error:
            raise StoreError(f"{path}: cannot be read: {error.orig}") from None
