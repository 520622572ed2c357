"""Canonical JSON and its digest: the one text by which plans, profiles and proposals are named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn


def canonical_json(fields: Mapping[str, Any]) -> str:
    """Write ``fields`` as canonical JSON: UTF-8, keys sorted, no spaces, shortest floats.

    ``ValueError`` for what JSON or UTF-8 cannot hold: NaN, infinity, objects of other types, half
    of a surrogate pair.
    """
    try:
        text = json.dumps(
            fields,
            ensure_ascii=False,
            allow_nan=False,
            check_circular=False,
            sort_keys=True,
            separators=(",", ":"),
        )
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text. Remove the character") from None
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return text


def digest_of(canonical: str) -> str:
    """Return ``sha256:`` and the hex SHA-256 of a canonical text."""
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Parse JSON strictly; ``ValueError`` for a field written twice, NaN and infinities.

    ``finite=False`` leaves numbers to the reader of the fields, which names their places.
    """
    constant = _refuse_constant if finite else None
    try:
        return json.loads(text, object_pairs_hook=join_fields, parse_constant=constant)
    except RecursionError as error:
        raise ValueError(f"too deeply nested ({error}). Flatten it") from None


class RepeatedFieldError(ValueError):
    """An object of JSON has a field twice, of which readers take different ones."""


def join_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields; ``RepeatedFieldError`` for one that is written twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RepeatedFieldError(f"field {twice!r} is written twice. Remove one")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON. Use a finite number")
