"""Options of length sources, and the field that is read by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqplan.costs.lengths.sources.conversations import Layout, find_layout
from seqplan.costs.lengths.sources.error import LengthsError

_COUNTS = ("length", "num_tokens")
COUNTED = (*_COUNTS, "input_ids", "tokens", "ids")
"""Fields looked for first when none is named: integers before ids."""

TEXT = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Settings of ``read_lengths``; each concerns the sources named with it."""

    field: str | None = None
    """Field or column to read (.jsonl, .parquet, .arrow); chosen by its name when None."""

    tokenizer: Path | float | None = None
    """Counts text: a ``tokenizer.json``, a tokenizer's folder, or its UTF-8 bytes per token.

    A folder's chat template renders conversations.
    """

    glob: str | None = None
    """Which files of a folder to read: a pattern on the name or on the path within the folder."""

    def __post_init__(self) -> None:
        rate = self.tokenizer
        if isinstance(rate, int | float) and not 0 < rate <= MOST_BYTES:
            raise LengthsError(
                f"--tokenizer {rate:g}: bytes per token must be above 0 and at most {MOST_BYTES}"
            )


MOST_BYTES = 64
"""Of a token on average: tokenizers of texts have 3 to 6."""


def parse_tokenizer(text: str) -> Path | float:
    """Read a tokenizer's path, or bytes per token."""
    try:
        return float(text)
    except ValueError:
        return Path(text)


def choose_field(present: Sequence[str], wanted: str | None, place: str) -> str | Layout:
    """Choose the field to read, or the fields that hold conversations.

    ``LengthsError`` names the fields that are there when none of them is known.
    """
    if wanted is not None:
        if wanted not in present:
            raise missing_field(present, wanted, place)
        return wanted
    for name in COUNTED:
        if name in present:
            return name
    layout = find_layout(present)
    if layout is not None and not (layout.chat is None and TEXT in present):
        return layout
    if TEXT in present:
        return TEXT
    raise LengthsError(
        f"{place}: none of the fields {', '.join((*COUNTED, TEXT))}, nor of a conversation; "
        f"it has {list_names(present)}: name one with --field"
    )


def check_list_of_ids(field: str, place: str) -> None:
    """Raise ``LengthsError`` for a list where a number is expected: a column of a whole file."""
    if field in _COUNTS:
        raise LengthsError(
            f"{place}: field {field!r} holds a list, not a number; write one record a sequence, or "
            "rename ids to input_ids"
        )


def missing_field(present: Sequence[str], wanted: str, place: str) -> LengthsError:
    """Return the error for a record without the field."""
    return LengthsError(f"{place}: no field {wanted!r}; it has {list_names(present)}")


def list_names(names: Sequence[str], limit: int = 12) -> str:
    """List field names for an error, the first few of many."""
    shown = [repr(name) for name in names[:limit]]
    return ", ".join(shown + ["…"] * (len(names) > limit)) or "no fields"
