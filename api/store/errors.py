"""What can be wrong with a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError


class StoreError(ValueError):
    """The store cannot be used: one line with the reason."""


class StoreUnavailable(RuntimeError):
    """The store cannot be read or written now (locked, disk full, server gone); try again."""


class ArrayMissing(RuntimeError):
    """The row of a data set is there, but its file is not; the message has the fix."""


class ArrayDamaged(RuntimeError):
    """The file of a data set differs from the upload; the message has the fix."""


class RowDamaged(RuntimeError):
    """A row of the store was changed after it was written."""


class InUse(RuntimeError):
    """It cannot be removed while something else, which the message names, needs it."""


_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
"""SQLite's codes of disk, lock and memory errors; other codes are of the file or the SQL."""

_PASSING_STATES = {
    "25006",  # a server that only reads: one that stands by, or is becoming the main
    "23505",  # another service has just written the same row: on retry, it is there
}
"""PostgreSQL's codes, in addition to those of operation, of errors to retry."""


@contextmanager
def outages() -> Iterator[None]:
    """Raise ``StoreUnavailable`` for what the block meets of outages; other errors go on."""
    try:
        yield
    except TimeoutError as error:  # of the pool: every connection is in use
        raise StoreUnavailable(f"all connections to the store are in use ({error})") from error
    except DBAPIError as error:
        if not _is_outage(error):
            raise
        reason = str(error.orig).strip().splitlines()
        raise StoreUnavailable(reason[0] if reason else type(error.orig).__name__) from error


def _is_outage(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        # Of what Python itself finds wrong, such as text that is not UTF-8, there is no code.
        code = getattr(error.orig, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _PASSING
    if error.connection_invalidated or isinstance(error, OperationalError | InterfaceError):
        return True
    return getattr(error.orig, "sqlstate", None) in _PASSING_STATES
