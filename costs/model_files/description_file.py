"""Small files of named values (JSON or TOML) that describe a device or a model."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from seqplan.plans.format.canonical import parse_json
from seqplan.plans.format.documents import name_document
from seqplan.plans.format.fields import read_text

SUFFIXES = (".json", ".toml")


def read_fields(path: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Read the file's object; ``error``, which begins with the path, if there is none."""
    text = read_text(path, error)
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        fields = tomllib.loads(text) if kind == "TOML" else parse_json(text, finite=False)
    except (ValueError, RecursionError) as failure:
        raise error(f"{path}: not {kind} ({failure}). Repair the file") from None
    if not isinstance(fields, dict):
        raise error(f"{path}: must be an object of fields. Name another file")
    if document := name_document(fields):
        raise error(f"{path}: is {document}. Name another file")
    return fields


def read_listed(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file of named tables; one that is ``like`` an earlier one has its other values."""
    listed: dict[str, dict[str, Any]] = {}
    for name, values in read_fields(path).items():
        like = values.pop("like", None)
        listed[name] = {**listed[like], **values} if like else values
    return listed


def check_fields(path: Path, fields: Collection[str], known: Collection[str]) -> None:
    """``ValueError`` for the first unknown field, with the nearest known one."""
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}"
            raise ValueError(f"{path}: unknown field: {name!r}. {fix}")


def check_integer(path: Path, name: str, value: object) -> int:
    """Return a value that is an integer above 0; else ``ValueError``."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{path}: {name} must be an integer of 1 or more: {value!r}")
    return value


def check_number(path: Path, name: str, value: object) -> float:
    """Return a value that is a number; else ``ValueError``."""
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise ValueError(f"{path}: {name} must be a number: {value!r}")
    if not -1e300 < value < 1e300:
        raise ValueError(f"{path}: {name} must be a finite number: {str(value)[:20]}")
    return float(value)
