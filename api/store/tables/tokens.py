"""The table of bearer tokens, kept as hashes only: which requests they allow."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError

_LONGEST_NAME = 128
SCOPES = ("read", "write")
"""What a token allows; write includes read."""


@dataclass(frozen=True)
class Token:
    """A token as it is stored; ``job``: the only one it opens, ``expires_at``: Unix time."""

    name: str
    hash: str
    scope: str
    job: str | None = None
    expires_at: int | None = None


def add_token(
    connection: Connection,
    name: str,
    scope: str,
    *,
    job: str | None = None,
    expires_at: int | None = None,
) -> str:
    """Make a token, which is shown once: the store keeps its hash. ``StoreError`` for a name used.

    ``job``, ``expires_at``: see ``Token``.
    A token has 256 random bits, so that one round of SHA-256 is as good as a slow hash.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise StoreError(
            f"a token's name must be 1 to {_LONGEST_NAME} printable characters: {name!r}"
        )
    if scope not in SCOPES:
        raise StoreError(f"scope {scope!r}: choose one of {', '.join(SCOPES)}")
    if connection.execute(select(schema.tokens).where(schema.tokens.c.name == name)).first():
        raise StoreError(f"there is a token {name!r} already; choose another name")
    token = "seqplan_" + secrets.token_urlsafe(32)
    row = Token(name, _hash(token), scope, job, expires_at)
    connection.execute(insert(schema.tokens).values(asdict(row)))
    return token


def list_tokens(connection: Connection) -> list[Token]:
    """Return every token, in order of name; if there is any, every request needs one."""
    query = select(schema.tokens).order_by(schema.tokens.c.name)
    return [Token(**row) for row in connection.execute(query).mappings()]


def revoke_token(connection: Connection, name: str) -> None:
    """Remove a token, so that it opens nothing any more; ``StoreError`` if there is none."""
    gone = connection.execute(delete(schema.tokens).where(schema.tokens.c.name == name))
    if not gone.rowcount:
        names = ", ".join(repr(known.name) for known in list_tokens(connection)) or "none"
        raise StoreError(f"there is no token {name!r}; there are {names}")


def find_token(tokens: Iterable[Token], text: str) -> Token | None:
    """Return the valid token with this text, if it is among these. Compares in constant time."""
    hashed, matching = _hash(text), None
    for token in tokens:
        if hmac.compare_digest(hashed, token.hash):
            matching = token
    if matching is None or matching.expires_at is None or matching.expires_at > time.time():
        return matching
    return None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
