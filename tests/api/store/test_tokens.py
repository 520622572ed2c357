"""Tokens, of which the store keeps hashes."""

from collections.abc import Callable

import pytest

from seqplan.api.store.errors import StoreError
from seqplan.api.store.store import Store
from seqplan.api.store.tables import tokens

Opener = Callable[[], Store]


def test_tokens(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        assert tokens.list_tokens(connection) == []
        token = tokens.add_token(connection, "a", "read", job="j")
        gone = tokens.add_token(connection, "old", "write", expires_at=1)
        known = tokens.list_tokens(connection)
        stored = tokens.find_token(known, token)
        assert (stored.scope, stored.job, stored.expires_at) == ("read", "j", None)
        assert tokens.find_token(known, token + "x") is None
        assert tokens.find_token(known, gone) is None
        with pytest.raises(StoreError, match="choose one of read, write"):
            tokens.add_token(connection, "b", "all")
