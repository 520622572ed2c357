"""Lengths from a text file with one integer a line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.collector import (
    MAX_LENGTH,
    Collector,
    length_error,
    number_places,
)
from seqplan.costs.lengths.sources.error import LengthsError, shown

CHUNK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_INTEGER = re.compile(rb"[+-]?[0-9]{1,4000}")


def read_txt(path: Path, collector: Collector) -> None:
    """Read every line as a length; blank lines and what follows a ``#`` are skipped."""
    lines_read = 0
    with path.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            if lines_read == 0:
                lines[0] = lines[0].removeprefix(_BOM)
            plain = _plain(lines)
            lengths = _careful(lines, path, lines_read) if plain is None else plain
            collector.add(lengths, number_places(f"{path}: line", lines_read + 1))
            lines_read += len(lines)


def _plain(lines: list[bytes]) -> NDArray[np.int64] | None:
    """Read a chunk whose every line is a good length, fast; else None."""
    try:
        lengths = np.fromiter(map(int, lines), np.int64, len(lines))
    except (ValueError, OverflowError):
        return None
    # int() reads 1_000 as a thousand, which a length file does not mean.
    good = lengths.min() >= 1 and lengths.max() <= MAX_LENGTH and b"_" not in b"".join(lines)
    return lengths if good else None


def _careful(lines: list[bytes], path: Path, done: int) -> NDArray[np.int64]:
    """Read a chunk line by line: skips optional lines and names the line of an error."""
    lengths = []
    for number, line in enumerate(lines, done + 1):
        text = line.partition(b"#")[0].strip()
        if not text:
            continue
        if not _INTEGER.fullmatch(text):
            raise LengthsError(
                f"{path}: line {number}: {shown(text.decode('utf-8', 'replace'))} "
                "is not an integer; a .txt source has one length a line"
            )
        value = int(text)
        if not 1 <= value <= MAX_LENGTH:
            raise length_error(value, f"{path}: line {number}")
        lengths.append(value)
    return np.array(lengths, np.int64)
