"""Whole numbers that callers give, of Python or NumPy."""

from __future__ import annotations

from numbers import Integral

from seqplan.plans.format.fields import MAX_INTEGER


def read_whole_number(name: str, value: object, most: int = MAX_INTEGER) -> int:
    """Return a number from 1 to ``most`` as an int; ``ValueError`` for another, or a boolean."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if int(value) > most:
        raise ValueError(f"{name} must be {most} or fewer, not {value}")
    return int(value)
