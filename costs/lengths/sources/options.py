"""Options of length sources, and the field that is read by default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqplan.costs.lengths.sources.chat import MESSAGES, needs_template
from seqplan.costs.lengths.sources.error import LengthsError

AUTOMATIC = ("length", "num_tokens", "input_ids", "tokens", "ids", "text")
"""Fields looked for when none is named: an integer before ids before text, cheap before dear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Settings of ``read_lengths``; each concerns the sources named with it."""

    field: str | None = None
    """Field or column to read (.jsonl, .parquet, .arrow); found by itself when None."""

    tokenizer: Path | None = None
    """A Hugging Face ``tokenizer.json`` that counts the tokens of text."""

    bytes_per_token: float | None = None
    """Estimate the tokens of text from its UTF-8 bytes instead."""

    chat_template: Path | None = None
    """The folder of a tokenizer, whose chat template renders the messages of each record."""

    glob: str | None = None
    """Which files of a folder to read: a pattern on the name or on the path within the folder."""

    def __post_init__(self) -> None:
        rate = self.bytes_per_token
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise LengthsError(f"bytes per token must be a number above 0, not {rate!r}")
        if rate is not None and self.tokenizer is not None:
            raise LengthsError("give a tokenizer or bytes per token, not both. Leave one out")
        if self.chat_template is not None and (rate is not None or self.tokenizer is not None):
            raise LengthsError(
                "a chat template counts with its tokenizer. Leave the tokenizer and bytes per "
                "token out"
            )


def choose_field(present: Sequence[str], wanted: str | None, place: str) -> str:
    """Choose the field to read; ``LengthsError`` names those that are there when it is not."""
    if wanted is not None:
        if wanted not in present:
            raise missing_field(present, wanted, place)
        return wanted
    for name in AUTOMATIC:
        if name in present:
            return name
    if MESSAGES in present:
        raise needs_template(f"{place}: field {MESSAGES!r}")
    raise LengthsError(
        f"{place}: none of the fields {', '.join(AUTOMATIC)}; "
        f"it has {list_names(present)}: name one with --field"
    )


def missing_field(present: Sequence[str], wanted: str, place: str) -> LengthsError:
    """Return the error for a record without the field."""
    return LengthsError(f"{place}: no field {wanted!r}; it has {list_names(present)}")


def list_names(names: Sequence[str], limit: int = 12) -> str:
    """List field names for an error, the first few of many."""
    shown = [repr(name) for name in names[:limit]]
    return ", ".join(shown + ["…"] * (len(names) > limit)) or "no fields"
