"""Lengths from records in JSON or CSV: integers, ids, texts or conversations."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.chat import read_chats
from seqplan.costs.lengths.sources.collector import MAX_LENGTH, Collector, length_error
from seqplan.costs.lengths.sources.conversations import Layout, is_chat
from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown
from seqplan.costs.lengths.sources.grids import is_grid_field, read_grids
from seqplan.costs.lengths.sources.options import check_list_of_ids, choose_field, missing_field
from seqplan.costs.lengths.sources.token_count import TextBatch, TokenCounter
from seqplan.plans.format.canonical import RepeatedFieldError, join_fields
from seqplan.plans.format.documents import name_document
from seqplan.plans.format.fields import name_document_of

CHUNK = 1 << 16
_DECODER = json.JSONDecoder(object_pairs_hook=join_fields)
_BETWEEN = re.compile(r"[\s,]*")
_KINDS: dict[type, str] = {int: "an integer", list: "a list of ids", str: "a text"}


def read_jsonl(path: Path, wanted: str | None, counter: TokenCounter, out: Collector) -> None:
    """Read objects of JSON, one a line or in a list."""
    records = _list_records(path) if _is_list(path) else _read_lines(path)
    read_records(path, records, wanted, counter, out)


def read_records(
    path: Path,
    records: Iterator[tuple[str, dict[str, Any]]],
    wanted: str | None,
    counter: TokenCounter,
    out: Collector,
) -> None:
    """Read one sequence a record; the first record settles the field and its kind.

    Records with conversations are rendered and counted. A column of grids (``image_grid_thw``)
    has a sequence for each frame.
    """
    if wanted is not None and is_grid_field(wanted):
        read_grids(((place, _grids(place, wanted, r)) for place, r in records), wanted, out)
        return
    first = next(records, None)
    if first is None:
        return
    place, record = first
    if document := name_document(record):
        raise _is_document(place, document)
    field = choose_field(list(record), wanted, place)
    if isinstance(field, str) and is_chat(record[field]):
        field = Layout(chat=field)
    if isinstance(field, Layout):
        chats = counter.require_chats(place)
        read_chats(chain([first], records), field, list(record), chats, out)
        return
    kind = type(record[field])
    if kind not in _KINDS:
        raise _not_a_length(place, field, record[field])
    if kind is list:
        check_list_of_ids(field, place)
    if wanted is None:
        out.note(f"{_KINDS[kind]} in field {field!r}")
    if kind is str:
        counter.require(f"{path}: field {field!r}")
        out.note(counter.note)
        batch = TextBatch(counter, out)
        for place, record in chain([first], records):
            batch.add(_value(place, field, str, record), place, str)
        batch.flush(str)
        return
    chunk: list[int] = []
    for place, record in chain([first], records):
        chunk.append(_length(place, field, kind, record))
        if len(chunk) == CHUNK:
            out.add(chunk, lambda _: str(path))
            chunk.clear()
    out.add(chunk, lambda _: str(path))


def _grids(place: str, field: str, record: dict[str, Any]) -> Any:
    if field not in record:
        raise missing_field(list(record), field, place)
    return record[field]


def _length(place: str, field: str, kind: type, record: dict[str, Any]) -> int:
    """Return the length of one record; checked here, where its place is known."""
    value = _value(place, field, kind, record)
    if kind is list:
        if value and isinstance(value[0], (list, dict)):
            raise LengthsError(
                f"{place}: field {field!r} holds a list of lists; write one sequence a record"
            )
        value = len(value)
    if not 1 <= value <= MAX_LENGTH:
        raise length_error(value, place)
    return int(value)


def _value(place: str, field: str, kind: type, record: dict[str, Any]) -> Any:
    try:
        value = record[field]
    except KeyError:
        raise missing_field(list(record), field, place) from None
    if type(value) is not kind:
        if type(value) not in _KINDS:
            raise _not_a_length(place, field, value)
        held = shown(value) if type(value) is str else _KINDS[type(value)]
        raise LengthsError(
            f"{place}: field {field!r} holds {held}, in the records before {_KINDS[kind]}"
            ". Use one type in all records"
        )
    return value


def _not_a_length(place: str, field: str, value: Any) -> LengthsError:
    return LengthsError(
        f"{place}: field {field!r} is {shown(value)}; "
        "it must be an integer, a list of ids or a text"
    )


def _is_list(path: Path) -> bool:
    """Return whether a ``.json`` file holds one list, not an object a line."""
    if path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        first = file.readline().removeprefix(BOM_UTF8).lstrip()
        while not first and (line := file.readline()):
            first = line.lstrip()
    return first.startswith(b"[")


def _list_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each record of a list."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        records = _DECODER.decode(text)
    except RepeatedFieldError as error:
        raise LengthsError(f"{path}: record {_count_sound(text)}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise LengthsError(
            f"{path}: is not JSON: {first_line(error)}. Write a list of objects, or one a line"
        ) from None
    for number, record in enumerate(records):
        place = f"{path}: record {number}"
        if type(record) is not dict:
            raise LengthsError(f"{place}: holds {shown(record)}. It must be an object")
        yield place, record


def _count_sound(text: str) -> int:
    """Count the records of a list before the first that has a field twice."""
    at = text.index("[") + 1
    for number in count():
        try:
            _, at = _DECODER.raw_decode(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr]
        except RepeatedFieldError:
            return number
    raise AssertionError("a list ends")


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each record; blank lines are skipped."""
    for number, line in _lines(path):
        place = f"{path}: line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise LengthsError(
                f"{place}: is not UTF-8 (byte {error.start + 1}: {error.reason}); convert the file"
            ) from None
        text = text.strip()
        if not text:
            continue
        try:
            record = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            if text == "{" and (document := name_document_of(path)):
                raise _is_document(str(path), document) from None
            # The decoder's line is always the first here, which would mislead.
            raise _not_json(place, f"{error.msg} at column {error.colno}") from None
        except RepeatedFieldError as error:
            raise LengthsError(f"{place}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise _not_json(place, first_line(error)) from None
        if type(record) is not dict:
            raise LengthsError(
                f"{place}: holds {shown(record)}; a .jsonl source has one object a line"
            )
        yield place, record


def _is_document(place: str, document: str) -> LengthsError:
    as_batches, of_others = "Give batches as .jsonl", "Name the lengths that it is made from"
    fix = as_batches if document == "a batch" else of_others
    return LengthsError(f"{place}: is {document}. {fix}")


def _not_json(place: str, why: str) -> LengthsError:
    return LengthsError(f"{place}: is not JSON: {why}; a .jsonl source has one object a line")


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
