"""Lengths of batches that a trainer has drawn: those of every step's sequences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.error import LengthsError, first_line
from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.decode import PlanReader
from seqplan.plans.format.documents import BATCH_FIELDS, name_document

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


class BatchReader(PlanReader):
    """Reads one line of a file of batches; ``strict`` rejects unknown fields."""

    error = LengthsError
    format = "a batch"

    def parse(self, line: bytes) -> dict[str, Any]:
        """Parse a line, an object with ``lengths``."""
        try:
            raw = parse_json(line.decode(ENCODING), finite=False)
        except UnicodeDecodeError as error:
            self.fail("", f"is not UTF-8 ({error.reason}). Convert the file")
        except ValueError as error:
            self.fail("", f"is not a whole JSON object ({first_line(error)}). Repair the line")
        if type(raw) is not dict:
            self.fail("", "is not an object with lengths. Repair the line")
        self.fields(raw, "", frozenset({"lengths"}), BATCH_FIELDS)
        return raw


def iterate_batches(path: Path, *, strict: bool) -> Iterator[tuple[BatchReader, dict[str, Any]]]:
    """Yield the object of each line, and a reader of its fields; blank lines are skipped."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                reader = BatchReader(f"{path}: line {number}", strict)
                yield reader, reader.parse(line)


def read_batch_lengths(path: Path, out: Collector) -> None:
    """Read the list ``lengths`` of each line."""
    out.note("lengths of batches, one for each sequence of a step")
    for reader, batch in iterate_batches(path, strict=False):
        lengths = reader.integers(batch, "lengths", "", 1)
        out.add(lengths, partial("{}: lengths[{}]".format, reader.origin))
