"""The table of answers that were given under an Idempotency-Key."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, insert, select, tuple_

from seqplan.api.store import schema


@dataclass(frozen=True)
class StoredAnswer:
    """What a request with an Idempotency-Key was answered; ``request``: hex sha256 of its body."""

    request: str
    status: int
    body: str


def earlier_answer(connection: Connection, path: str, key: str) -> StoredAnswer | None:
    """Read the answer that this key was given on this path."""
    table = schema.answers
    query = select(table.c.request, table.c.status, table.c.body)
    row = connection.execute(query.where(table.c.path == path, table.c.key == key)).first()
    return None if row is None else StoredAnswer(*row)


def keep_answer(connection: Connection, path: str, key: str, answer: StoredAnswer) -> None:
    """Keep the answer, in the transaction of what it answers for."""
    values = {**asdict(answer), "path": path, "key": key, "at": int(time.time())}
    connection.execute(insert(schema.answers).values(values))


def forget_answers(connection: Connection, paths: Sequence[str], key: str) -> None:
    """Invalidate the idempotency record of ``key``."""
    table = schema.answers
    beginning = f'{{"id":{json.dumps(key)},'
    same = func.substr(table.c.body, 1, len(beginning)) == beginning
    connection.execute(delete(table).where(table.c.path.in_(paths), same))


def remove_old_answers(connection: Connection, before: float, limit: int) -> bool:
    """Remove at most ``limit`` answers given before a time (Unix time); False if that was all."""
    table = schema.answers
    old = select(table.c.path, table.c.key).where(table.c.at < int(before)).limit(limit)
    same = tuple_(table.c.path, table.c.key).in_(old)
    return connection.execute(delete(table).where(same)).rowcount == limit
