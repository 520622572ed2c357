"""Whole numbers and lists that callers give, of Python or NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from seqplan.planner.errors import OptionError
from seqplan.plans.format.fields import MAX_INTEGER


def read_whole_number(name: str, value: object, most: int = MAX_INTEGER) -> int:
    """Return a number from 1 to ``most`` as an int; ``ValueError`` for another, or a boolean."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if int(value) > most:
        raise ValueError(f"{name} must be {most} or fewer, not {value}")
    return int(value)


def read_seed(value: object) -> int:
    """Return a seed as an int that plans can state; ``OptionError`` for another value."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else -1
    if not 0 <= whole <= MAX_INTEGER:
        raise OptionError(
            "{0} must be a whole number of 0 or more, below 2**63: {value!r}", "seed", value=value
        )
    return whole


def check_kind(name: str, value: object, kind: type, fix: str) -> None:
    """Check that ``value`` is of a kind; ``TypeError`` states the ``fix``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: {value!r:.60}. Give {fix}")


def check_list(name: str, value: object, entries: str) -> None:
    """Check that ``value`` lists something; ``TypeError`` names the ``entries`` to give.

    A set has no order, by which entries belong to sequences or ranks.
    """
    unordered = isinstance(value, str | bytes | dict | set | frozenset)
    if unordered or not isinstance(value, Iterable):
        raise TypeError(f"{name}: {value!r:.60}. Give a list of {entries}")
