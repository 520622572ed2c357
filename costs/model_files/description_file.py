"""Small files of named values (JSON or TOML) that describe a device or a model."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

SUFFIXES = (".json", ".toml")


def read_fields(path: Path, *, at_most: int = 1 << 24) -> dict[str, Any]:
    """Read the file's object; ``ValueError``, which begins with the path, if there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(at_most + 1).decode("utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}. Check the path") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason}). Convert the file") from None
    if len(text) > at_most:
        raise ValueError(f"{path}: is above {at_most:,} bytes. Name a file of few fields")
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        fields = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not {kind} ({error}). Repair the file") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: must be an object of fields. Name another file")
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
