"""Lengths from JSON Lines, plain or gzipped: an integer, a list of ids or a text in each record."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.chat import (
    MESSAGES,
    TOOLS,
    ChatTokenizer,
    is_chat,
    needs_template,
    read_chats,
)
from seqplan.costs.lengths.sources.collector import MAX_LENGTH, Collector, length_error
from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown
from seqplan.costs.lengths.sources.grids import is_grid_field, read_grids
from seqplan.costs.lengths.sources.options import choose_field, missing_field
from seqplan.costs.lengths.sources.token_count import TextBatch, TokenCounter

CHUNK = 1 << 16
_KINDS: dict[type, str] = {int: "an integer", list: "a list of ids", str: "a text"}


def read_jsonl(
    path: Path,
    wanted: str | None,
    counter: TokenCounter,
    out: Collector,
    chats: ChatTokenizer | None = None,
) -> None:
    """Read one sequence a record; the first record settles the field and its kind.

    ``chats``: renders and counts the messages of each record instead. A column of grids
    (``image_grid_thw``) has a sequence for each frame.
    """
    records = _records(path)
    if chats is not None:
        field = wanted or MESSAGES
        rows = ((f"{path}: line {n}", r.get(field), r.get(TOOLS)) for n, r in records)
        read_chats(rows, field, chats, out)
        return
    if wanted is not None and is_grid_field(wanted):
        read_grids(
            ((f"{path}: line {n}", _grids(path, n, wanted, r)) for n, r in records), wanted, out
        )
        return
    first = next(records, None)
    if first is None:
        return
    number, record = first
    field = choose_field(list(record), wanted, f"{path}: line {number}")
    kind = type(record[field])
    if kind not in _KINDS:
        raise _not_a_length(path, number, field, record[field])
    if wanted is None:
        out.note(f"{_KINDS[kind]} in field {field!r}")
    if kind is str:
        counter.require(f"{path}: field {field!r}")
        out.note(counter.note)
        _read_texts(path, field, record, records, TextBatch(counter, out), number)
        return
    chunk = [_length(path, number, field, kind, record)]
    for number, record in records:
        chunk.append(_length(path, number, field, kind, record))
        if len(chunk) == CHUNK:
            out.add(chunk, lambda _: str(path))
            chunk.clear()
    out.add(chunk, lambda _: str(path))


def _grids(path: Path, number: int, field: str, record: dict[str, Any]) -> Any:
    if field not in record:
        raise missing_field(list(record), field, f"{path}: line {number}")
    return record[field]


def _read_texts(
    path: Path,
    field: str,
    first: dict[str, Any],
    records: Iterator[tuple[int, dict[str, Any]]],
    batch: TextBatch,
    number: int,
) -> None:
    def place(number: int) -> str:
        return f"{path}: line {number}"

    batch.add(first[field], number, place)
    for number, record in records:
        batch.add(_value(path, number, field, str, record), number, place)
    batch.flush(place)


def _length(path: Path, number: int, field: str, kind: type, record: dict[str, Any]) -> int:
    """Return the length of one record; checked here, where its line is known."""
    value = _value(path, number, field, kind, record)
    if kind is list:
        if is_chat(value):
            raise needs_template(f"{path}: line {number}: field {field!r}")
        if value and isinstance(value[0], (list, dict)):
            raise LengthsError(
                f"{path}: line {number}: field {field!r} holds a list of lists; "
                "write one sequence a record"
            )
        value = len(value)
    if not 1 <= value <= MAX_LENGTH:
        raise length_error(value, f"{path}: line {number}")
    return int(value)


def _value(path: Path, number: int, field: str, kind: type, record: dict[str, Any]) -> Any:
    try:
        value = record[field]
    except KeyError:
        raise missing_field(list(record), field, f"{path}: line {number}") from None
    if type(value) is not kind:
        if type(value) not in _KINDS:
            raise _not_a_length(path, number, field, value)
        raise LengthsError(
            f"{path}: line {number}: field {field!r} holds {_KINDS[type(value)]}, "
            f"in the records before {_KINDS[kind]}"
            ". Use one type in all records"
        )
    return value


def _not_a_length(path: Path, number: int, field: str, value: Any) -> LengthsError:
    return LengthsError(
        f"{path}: line {number}: field {field!r} is {shown(value)}; "
        "it must be an integer, a list of ids or a text"
    )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record with its line number; blank lines are skipped."""
    for number, line in _lines(path):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise LengthsError(
                f"{path}: line {number}: is not UTF-8 (byte {error.start + 1}: {error.reason}); "
                "convert the file"
            ) from None
        text = text.strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            # The decoder's line is always the first here, which would mislead.
            raise _not_json(path, number, f"{error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise _not_json(path, number, first_line(error)) from None
        if type(record) is not dict:
            raise LengthsError(
                f"{path}: line {number}: holds {shown(record)}; a .jsonl source has one object "
                "a line"
            )
        yield number, record


def _not_json(path: Path, number: int, why: str) -> LengthsError:
    return LengthsError(
        f"{path}: line {number}: is not JSON: {why}; a .jsonl source has one object a line"
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield from enumerate(file, 1)
        return
    number = 0
    with gzip.open(path, "rb") as file:
        try:
            for number, line in enumerate(file, 1):
                yield number, line
        except EOFError:
            raise LengthsError(
                f"{path}: is a truncated gzip file, it ends after line {number}; copy it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise LengthsError(
                f"{path}: is not a whole gzip file: {first_line(error)}, after line {number}"
                ". Write or download it again"
            ) from None
