"""Records of a ``.csv`` or ``.tsv`` file, whose first line names the columns."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown
from seqplan.costs.lengths.sources.options import COUNTED, TEXT

_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")


def read_csv_records(path: Path, wanted: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each record.

    Columns that may be counts (``COUNTED`` and ``wanted``) have integers if their first value is
    one, texts otherwise; a first value that is another number, or missing, is read as such. All
    other columns are texts. ``LengthsError`` names the line of an error.
    """
    counted = {*COUNTED, wanted} - {TEXT}
    csv.field_size_limit(sys.maxsize)  # a field may hold a whole document
    with path.open(newline="", encoding="utf-8-sig") as file:
        dialect = "excel-tab" if path.suffix.lower() == ".tsv" else "excel"
        rows = csv.reader(file, dialect, strict=True)
        try:
            names = next(rows, [])
            _check_names(path, names)
            integers: set[str] | None = None
            for row in rows:
                if not row:
                    continue
                place = f"{path}: line {rows.line_num}"
                if len(row) != len(names):
                    raise LengthsError(
                        f"{place}: has {len(row)} values for {len(names)} columns. Quote the texts"
                    )
                record: dict[str, Any] = dict(zip(names, row, strict=True))
                if integers is None:
                    present = [name for name in names if name in counted]
                    integers = {name for name in present if _INTEGER.fullmatch(record[name])}
                    record.update((name, _read_first(record[name])) for name in present)
                    yield place, record
                    continue
                for name in integers:
                    if _INTEGER.fullmatch(record[name]):
                        record[name] = int(record[name])
                yield place, record
        except csv.Error as error:
            raise LengthsError(
                f"{path}: line {rows.line_num}: is not CSV: {first_line(error)}. Write it again"
            ) from None
        except UnicodeDecodeError as error:
            raise LengthsError(f"{path}: is not UTF-8: {error.reason}. Convert the file") from None


def _check_names(path: Path, names: list[str]) -> None:
    """Require a first line with the names of the columns."""
    if not names or any(_INTEGER.fullmatch(name) for name in names):
        raise LengthsError(
            f"{path}: line 1 does not name the columns. Add names, or name a file with one length "
            "a line .txt"
        )
    if any("\0" in name for name in names):
        raise LengthsError(f"{path}: is not CSV: line 1 has a NUL byte. Write it again")
    if len(names) == 1 and re.search("[;|\t]", names[0]):
        raise LengthsError(
            f"{path}: line 1: {shown(names[0])} is one column. Separate columns by commas, or by "
            "tabs in a .tsv"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LengthsError(f"{path}: line 1: column {twice!r} is there twice. Rename one")


def _read_first(text: str) -> int | float | str | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
