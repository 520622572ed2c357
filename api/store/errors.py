"""What can be wrong with a store."""

from __future__ import annotations


class StoreError(ValueError):
    """A store that cannot be used as asked: one line that says why."""


class StoreUnavailable(RuntimeError):
    """The store cannot be read or written now (locked, disk full, server gone); try again."""


class ArrayMissing(RuntimeError):
    """The row of a data set is there, but its file is not; the message says how to mend it."""


class ArrayDamaged(RuntimeError):
    """The file of a data set is not what was uploaded; the message has the fix."""


class RowDamaged(RuntimeError):
    """A row of the store does not hold what was written."""


class InUse(RuntimeError):
    """What cannot be removed, as something else needs it; the message says what."""
