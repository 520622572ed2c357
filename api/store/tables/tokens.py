"""The table of bearer tokens, kept as hashes only: which requests they allow."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError
from seqplan.api.store.names import check_token_name

SCOPES = ("read", "write")
"""What a token allows; write includes read."""


def add_token(connection: Connection, name: str, scope: str) -> str:
    """Make a token, which is shown once: the store keeps its hash. ``StoreError`` for a name used.

    A token has 256 random bits, so that one round of SHA-256 is as good as a slow hash.
    """
    try:
        check_token_name(name)
    except ValueError as error:
        raise StoreError(str(error)) from None
    if scope not in SCOPES:
        raise StoreError(f"scope {scope!r}: choose one of {', '.join(SCOPES)}")
    if connection.execute(select(schema.tokens).where(schema.tokens.c.name == name)).first():
        raise StoreError(f"there is a token {name!r} already; choose another name")
    token = "seqplan_" + secrets.token_urlsafe(32)
    connection.execute(insert(schema.tokens).values(name=name, hash=_hash(token), scope=scope))
    return token


def list_tokens(connection: Connection) -> list[tuple[str, str]]:
    """Return name and scope of every token, in order of name."""
    query = select(schema.tokens.c.name, schema.tokens.c.scope).order_by(schema.tokens.c.name)
    return [(name, scope) for name, scope in connection.execute(query)]


def revoke_token(connection: Connection, name: str) -> None:
    """Remove a token, so that it opens nothing any more; ``StoreError`` if there is none."""
    gone = connection.execute(delete(schema.tokens).where(schema.tokens.c.name == name))
    if not gone.rowcount:
        names = ", ".join(repr(known) for known, _ in list_tokens(connection)) or "none"
        raise StoreError(f"there is no token {name!r}; there are {names}")


def read_token_hashes(connection: Connection) -> list[tuple[str, str]]:
    """Return hash and scope of every token; if there is any, every request needs one."""
    query = select(schema.tokens.c.hash, schema.tokens.c.scope)
    return [(hashed, scope) for hashed, scope in connection.execute(query)]


def scope_of(tokens: Iterable[tuple[str, str]], token: str) -> str | None:
    """Return what the token allows, None when it is not among these. Compares in constant time."""
    hashed, allowed = _hash(token), None
    for known, scope in tokens:
        if hmac.compare_digest(hashed, known):
            allowed = scope
    return allowed


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
