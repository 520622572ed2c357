"""Disk space of a SQLite file: pages of deleted rows go back to the file system.

PostgreSQL's autovacuum does this by itself.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from sqlalchemy import Connection, Engine

_INCREMENTAL = 2
"""SQLite's number for auto_vacuum=INCREMENTAL."""

_AT_ONCE_BYTES = 1 << 30
"""Size up to which a file is rewritten when it is opened, some ten seconds."""

KEPT_PAGES = 1024
"""Free pages that stay in the file, 4 MiB: expired steps make room for new ones."""

_log = logging.getLogger("seqplan.store")


def prepare(engine: Engine, database: Path) -> None:
    """Have a file's pages freed bit by bit: a new one, and by a rewrite one that keeps them."""
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        if raw.execute("PRAGMA auto_vacuum").fetchone()[0] == _INCREMENTAL:
            return
        size = database.stat().st_size
        if size <= _AT_ONCE_BYTES and shutil.disk_usage(database.parent).free > 2 * size:
            raw.execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
            raw.execute("VACUUM")
        else:
            _log.warning(
                "%s: space of removed jobs is not given back. Stop the service and run: "
                "sqlite3 %s 'PRAGMA auto_vacuum=%d; VACUUM'",
                database,
                database,
                _INCREMENTAL,
            )


def free_pages(connection: Connection, pages: int) -> bool:
    """Give back at most ``pages`` free pages; False if few are left, or the file keeps them."""
    if connection.dialect.name != "sqlite":
        return False
    before = _free(connection)
    if before <= KEPT_PAGES:
        return False
    raw = connection.connection.driver_connection
    assert raw is not None
    raw.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    return KEPT_PAGES < _free(connection) < before


def _free(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
