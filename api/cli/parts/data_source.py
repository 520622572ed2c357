"""The data that a command plans for: lengths, tokens, text or chats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from seqplan.costs.lengths import Lengths, Progress, SourceOptions, read_lengths
from seqplan.costs.lengths.sources.chat import MESSAGES

TOKENIZER_FILE = "tokenizer.json"


def read_data(source: str, tokenizer: str | None, progress: Progress | None = None) -> Lengths:
    """Read the lengths of a data set; ``LengthsError`` if they cannot be known.

    ``tokenizer``: of text, a ``tokenizer.json``, a tokenizer's folder (for chats, with its
    template), or bytes per token.
    """
    return read_lengths([source], _options(source, tokenizer), progress)


def _options(source: str, tokenizer: str | None) -> SourceOptions:
    if tokenizer is None:
        return SourceOptions()
    try:
        return SourceOptions(bytes_per_token=float(tokenizer))
    except ValueError as error:
        if _is_number(tokenizer):
            raise ValueError(f"--tokenizer {tokenizer}: {error}") from None
    path = Path(tokenizer)
    if not path.exists():
        raise ValueError(f"--tokenizer {tokenizer}: no such file or folder. Give one, or a number")
    if not path.is_dir():
        return SourceOptions(tokenizer=path)
    if _has_chats(Path(source)):
        return SourceOptions(chat_template=path)
    return SourceOptions(tokenizer=path / TOKENIZER_FILE)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_chats(path: Path) -> bool:
    """Return whether the first record of a JSONL file has messages."""
    if not path.is_file() or not path.name.endswith((".jsonl", ".jsonl.gz")):
        return False
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            record = json.loads(next((line for line in lines if line.strip()), b"null"))
    except (OSError, EOFError, ValueError, RecursionError):
        return False  # the error of its reader names the place
    return isinstance(record, dict) and MESSAGES in record
