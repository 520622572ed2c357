"""Whole numbers that callers give, of Python or NumPy."""

from __future__ import annotations

from numbers import Integral


def read_whole_number(name: str, value: object) -> int:
    """Return a number of 1 or more as an int; ``ValueError`` for another, or a boolean."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    return int(value)
