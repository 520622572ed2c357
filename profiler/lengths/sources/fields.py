"""Which field or column of a record holds its length."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.profiler.lengths.sources.error import LengthsError

AUTOMATIC = ("length", "num_tokens", "input_ids", "tokens", "ids", "text")
"""Fields looked for when none is named: an integer before ids before text, cheap before dear."""


def choose_field(present: Sequence[str], wanted: str | None, place: str) -> str:
    """The field to read; ``LengthsError`` names those that are there when it is not."""
    if wanted is not None:
        if wanted not in present:
            raise missing_field(present, wanted, place)
        return wanted
    for name in AUTOMATIC:
        if name in present:
            return name
    raise LengthsError(
        f"{place}: none of the fields {', '.join(AUTOMATIC)}; "
        f"it has {listed(present)}: name one with --field"
    )


def missing_field(present: Sequence[str], wanted: str, place: str) -> LengthsError:
    """The error for a record without the field."""
    return LengthsError(f"{place}: no field {wanted!r}; it has {listed(present)}")


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Field names for an error, the first few of many."""
    shown = [repr(name) for name in names[:limit]]
    return ", ".join(shown + ["…"] * (len(names) > limit)) or "no fields"
