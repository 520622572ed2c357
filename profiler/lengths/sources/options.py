"""What a caller may say about length sources."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from seqplan.profiler.lengths.sources.error import LengthsError


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Settings of ``read_lengths``; each concerns the sources named with it."""

    field: str | None = None
    """Field or column to read (.jsonl, .parquet, .arrow); found by itself when None."""

    tokenizer: Path | None = None
    """A Hugging Face ``tokenizer.json`` that counts the tokens of text."""

    bytes_per_token: float | None = None
    """Estimate the tokens of text from its UTF-8 bytes instead."""

    glob: str | None = None
    """Which files of a folder to read: a pattern on the name or on the path within the folder."""

    def __post_init__(self) -> None:
        rate = self.bytes_per_token
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise LengthsError(f"bytes per token must be a number above 0, not {rate!r}")
        if rate is not None and self.tokenizer is not None:
            raise LengthsError("give a tokenizer or bytes per token, not both")
