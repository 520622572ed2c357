"""What can be wrong with a store."""

from __future__ import annotations


class StoreError(ValueError):
    """The store cannot be used: one line with the reason."""


class StoreUnavailable(RuntimeError):
    """The store cannot be read or written now (locked, disk full, server gone); try again."""


class ArrayMissing(RuntimeError):
    """The row of a data set is there, but its file is not; the message has the fix."""


class ArrayDamaged(RuntimeError):
    """The file of a data set differs from the upload; the message has the fix."""


class RowDamaged(RuntimeError):
    """A row of the store was changed after it was written."""


class InUse(RuntimeError):
    """It cannot be removed while something else, which the message names, needs it."""
