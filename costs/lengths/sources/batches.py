"""Lengths of batches that a trainer has drawn: those of every step's sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.collector import MAX_LENGTH, Collector
from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.documents import name_document

ENCODING = "utf-8-sig"
"""UTF-8, and a mark at the start of the file is no part of its first line."""


def has_batches(path: Path) -> bool:
    """Return whether a file has batches: its first line is one, or a damaged one."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return False
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        return name_document(json.loads(first.decode(ENCODING))) == "a batch"
    except (ValueError, RecursionError):
        return b'"lengths"' in first  # a damaged line, which the reader of batches names


def read_batch_lengths(path: Path, out: Collector) -> None:
    """Read the list ``lengths`` of each line; blank lines are skipped."""
    out.note("lengths of batches, one for each sequence of a step")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}: line {number}"
                out.add(_read_batch(line, place), lambda _: str(path))


def _read_batch(line: bytes, place: str) -> list[int]:
    try:
        batch: Any = parse_json(line.decode(ENCODING), finite=False)
    except ValueError as error:
        raise LengthsError(f"{place}: is not JSON: {first_line(error)}. Repair the line") from None
    if name_document(batch) != "a batch":
        raise LengthsError(f"{place}: is no batch, as the lines before. Repair the line")
    lengths: list[Any] = batch["lengths"]
    for at, length in enumerate(lengths):
        if type(length) is not int or not 1 <= length <= MAX_LENGTH:
            raise LengthsError(
                f"{place}: lengths[{at}] must be an integer from 1 to {MAX_LENGTH}: {shown(length)}"
            )
    return lengths
