"""What can be wrong with a store."""

from __future__ import annotations


class StoreError(ValueError):
    """A store that cannot be used as asked: one line that says why."""


class StoreUnavailable(RuntimeError):
    """The store cannot be read or written now (locked, disk full, server gone); try again."""


class InUse(RuntimeError):
    """What cannot be removed, as something else needs it; the message says what."""
