"""Who may ask (tokens, kept as hashes only), and answers that were given under a key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError

SCOPES = ("read", "write")
"""What a token allows; write includes read."""


@dataclass(frozen=True)
class Answer:
    """What a request with an Idempotency-Key was answered; ``request``: hex sha256 of its body."""

    request: str
    status: int
    body: str


def add_token(connection: Connection, name: str, scope: str) -> str:
    """A new token, which is shown once: the store keeps its hash. ``StoreError`` for a name used.

    A token has 256 random bits, so that one round of SHA-256 is as good as a slow hash.
    """
    if scope not in SCOPES:
        raise StoreError(f"scope {scope!r}: choose one of {', '.join(SCOPES)}")
    if connection.execute(select(schema.tokens).where(schema.tokens.c.name == name)).first():
        raise StoreError(f"there is a token {name!r} already; choose another name")
    token = "seqplan_" + secrets.token_urlsafe(32)
    connection.execute(insert(schema.tokens).values(name=name, hash=_hash(token), scope=scope))
    return token


def known_tokens(connection: Connection) -> list[tuple[str, str]]:
    """Hash and scope of every token; where there is any, every request needs one."""
    query = select(schema.tokens.c.hash, schema.tokens.c.scope)
    return [(hashed, scope) for hashed, scope in connection.execute(query)]


def scope_of(tokens: Iterable[tuple[str, str]], token: str) -> str | None:
    """What the token allows, None when it is not among these. Compares in constant time."""
    hashed, found = _hash(token), None
    for known, scope in tokens:
        if hmac.compare_digest(hashed, known):
            found = scope
    return found


def earlier_answer(connection: Connection, path: str, key: str) -> Answer | None:
    """The answer that this key was given on this path."""
    table = schema.answers
    query = select(table.c.request, table.c.status, table.c.body)
    found = connection.execute(query.where(table.c.path == path, table.c.key == key)).first()
    return None if found is None else Answer(*found)


def keep_answer(connection: Connection, path: str, key: str, answer: Answer) -> None:
    """Keep the answer, in the transaction of what it answers for."""
    connection.execute(
        insert(schema.answers).values(
            path=path, key=key, request=answer.request, status=answer.status, body=answer.body
        )
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
