"""Lists, page by page."""

from __future__ import annotations

from typing import Any

from seqplan.api.store.rows import Row, columns, page
from seqplan.api.store.store import Store


def read_page(store: Store, kind: type[Row], cursor: str, limit: int) -> dict[str, Any]:
    """Read a page: ``items`` and the ``next`` cursor, null on the last page."""
    with store.reading() as connection:
        rows, following = page(connection, kind, cursor, limit)
    return {"items": [columns(row) for row in rows], "next": following}
