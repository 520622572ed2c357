"""Checked values out of parsed JSON: an error names its origin and the field's path."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.documents import name_document

MAX_INTEGER = 2**63 - 1
"""Largest integer of any format: every reader can hold it in 64 signed bits."""

LONGEST = 2**28
"""Bytes of a document or of a plan's line at most; a plan of 10,240 ranks has 0.6 million."""

Choice = TypeVar("Choice", bound=str)

_NONE: frozenset[str] = frozenset()


class FieldReader:
    """Reads fields by name, type and range; places are paths such as ``.pipelines[3].ranks``.

    ``origin`` begins every message; ``strict`` rejects unknown fields, otherwise they are ignored.
    Subclasses name the ``error`` that they raise and the ``format`` that fields belong to.
    """

    error: ClassVar[type[ValueError]] = ValueError
    format: ClassVar[str] = "the format"

    def __init__(self, origin: str, strict: bool = True) -> None:
        self.origin = origin
        self.strict = strict

    def fail(self, place: str, problem: str) -> NoReturn:
        """Raise the reader's error at a place, or of the whole if it is empty."""
        where = f"{place.lstrip('.')}: " if place else ""
        raise self.error(f"{self.origin}: {where}{problem}")

    def check_document(self, raw: Any, document: str, needed: frozenset[str]) -> None:
        """Reject another document than ``document``, or one with none of its ``needed`` fields."""
        if type(raw) is not dict:
            return
        other = name_document(raw)
        if other is None and raw.keys().isdisjoint(needed):
            self.fail("", f"is not {document}. Name another file")
        if other not in (None, document):
            self.fail("", f"is {other}, not {document}. Name another file")

    def fields(
        self, raw: Any, place: str, needed: frozenset[str], optional: frozenset[str] = _NONE
    ) -> None:
        """Check that ``raw`` is an object with these fields."""
        if type(raw) is not dict:
            fix = "" if place else ". Name another file"
            self.fail(place, f"must be an object: {shown(raw)}{fix}")
        if raw.keys() == needed:
            return
        if missing := needed - raw.keys():
            self.fail(f"{place}.{min(missing)}", "is missing")
        if self.strict and (unknown := raw.keys() - needed - optional):
            self.fail(f"{place}.{min(unknown)}", f"is not a field of {self.format}")

    def items(self, raw: dict[str, Any], name: str, place: str) -> list[Any]:
        """Return a field that is a list."""
        value = raw[name]
        if type(value) is not list:
            self.fail(f"{place}.{name}", f"must be a list: {shown(value)}")
        return value

    def text(self, raw: dict[str, Any], name: str, place: str) -> str:
        """Return a field that is a string."""
        value = raw[name]
        if type(value) is not str:
            self.fail(f"{place}.{name}", f"must be a string: {shown(value)}")
        return value

    def choice(
        self, raw: dict[str, Any], name: str, place: str, choices: tuple[Choice, ...]
    ) -> Choice:
        """Read one of ``choices``."""
        text = self.text(raw, name, place)
        chosen = next((choice for choice in choices if choice == text), None)
        if chosen is None:
            self.fail(f"{place}.{name}", f"must be one of {', '.join(choices)}: {shown(text)}")
        return chosen

    def boolean(self, raw: dict[str, Any], name: str, place: str) -> bool:
        """Return a field that is true or false."""
        value = raw[name]
        if type(value) is not bool:
            self.fail(f"{place}.{name}", f"must be true or false: {shown(value)}")
        return value

    def integer(self, raw: dict[str, Any], name: str, place: str, least: int = 0) -> int:
        """Return a field that is an integer from ``least`` to ``MAX_INTEGER``."""
        value = raw[name]
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            self.fail(f"{place}.{name}", f"must be an integer ≥ {least}: {shown(value)}")
        return value

    def integer_or_null(
        self, raw: dict[str, Any], name: str, place: str, least: int = 0
    ) -> int | None:
        """Return a field that is an integer or null."""
        return None if raw[name] is None else self.integer(raw, name, place, least)

    def integers(
        self, raw: dict[str, Any], name: str, place: str, least: int = 0
    ) -> tuple[int, ...]:
        """Return a field that is a list of integers."""
        return self.integer_list(raw[name], f"{place}.{name}", least)

    def integer_list(self, value: Any, place: str, least: int = 0) -> tuple[int, ...]:
        """Check a list of integers."""
        if type(value) is not list:
            self.fail(place, f"must be a list of integers: {shown(value)}")
        if value and (
            set(map(type, value)) != {int} or min(value) < least or max(value) > MAX_INTEGER
        ):
            number, wrong = next(
                (number, entry)
                for number, entry in enumerate(value)
                if type(entry) is not int or not least <= entry <= MAX_INTEGER
            )
            self.fail(f"{place}[{number}]", f"must be an integer ≥ {least}: {shown(wrong)}")
        return tuple(value)

    def number(self, raw: dict[str, Any], name: str, place: str, most: float = math.inf) -> float:
        """Return a field that is a finite number of 0 or more, at most ``most``.

        The parsed field becomes a float, too: a writer without a float type may drop the ".0",
        which the canonical form has.
        """
        raw[name] = value = self._number(raw[name], f"{place}.{name}", most)
        return value

    def numbers(self, values: list[Any], place: str) -> list[float]:
        """Return a list of finite numbers of 0 or more; they become floats, as in ``number``."""
        for number, value in enumerate(values):
            values[number] = self._number(value, f"{place}[{number}]", math.inf)
        return values

    def _number(self, value: Any, place: str, most: float) -> float:
        if type(value) is int and abs(value) <= MAX_INTEGER:
            value = float(value)
        if type(value) is not float or not math.isfinite(value) or not 0 <= value <= most:
            limit = "a finite number ≥ 0" if most == math.inf else f"a number from 0 to {most:g}"
            self.fail(place, f"must be {limit}: {shown(value)}")
        return value


def shown(value: Any) -> str:
    """Show a value as JSON, short enough for a message of one line."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_text(path: str | os.PathLike[str], error: type[ValueError]) -> str:
    """Read a file as UTF-8; ``error`` with the path and the reason if it cannot be."""
    try:
        with open(path, "rb") as file:
            content = file.read(LONGEST)
        if len(content) == LONGEST:
            raise error(f"{path}: has {LONGEST:,} bytes or more. Check the path")
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise error(f"{path}: cannot be read: {reason}. Check the path") from None
    return decode_text(Path(path), content, error)


def name_document_of(path: str | os.PathLike[str]) -> str | None:
    """Name the document that a file holds on any number of lines; None for others."""
    try:
        return name_document(json.loads(read_text(path, ValueError)))
    except (ValueError, RecursionError):
        return None


def decode_text(path: Path, content: bytes, error: type[ValueError]) -> str:
    """Decode a file's content as UTF-8; ``error`` names the first byte that is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as failure:
        raise error(f"{path}: is not text: byte {failure.start + 1}. Name another file") from None


def parse_document(text: str, origin: str, kind: str, error: type[ValueError]) -> Any:
    """Parse a ``kind`` of JSON document; ``error`` names the ``origin`` and the fault."""
    try:
        return parse_json(text, finite=False)
    except json.JSONDecodeError as failure:
        several = "; a plan file has several" if failure.msg == "Extra data" else ""
        reason = f"not a whole JSON document ({failure.msg} at line {failure.lineno}{several})"
    except ValueError as failure:
        # A field written twice, an integer of thousands of digits, lists nested thousands deep.
        reason = f"not a {kind} ({failure})"
    raise error(f"{origin}: {reason}. Name a {kind}.json")
