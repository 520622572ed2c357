"""Tokens, of which the store keeps hashes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seqplan.api.store.errors import StoreError
from seqplan.api.store.store import Store
from seqplan.api.store.tables import tokens

Opener = Callable[[], Store]


def test_tokens(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        assert tokens.read_token_hashes(connection) == []
        token = tokens.add_token(connection, "a", "read")
        known = tokens.read_token_hashes(connection)
        assert tokens.scope_of(known, token) == "read"
        assert tokens.scope_of(known, token + "x") is None
        with pytest.raises(StoreError, match="choose one of read, write"):
            tokens.add_token(connection, "b", "all")
