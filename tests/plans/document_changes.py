"""Documents of JSON with one place changed, for tables of bad input."""

import copy
from typing import Any

MISSING: Any = object()
"""The value of a place that is removed."""


def change_document(document: Any, path: str, value: Any) -> Any:
    """Return a copy with the place at ``path`` (keys and positions with dots between) changed.

    A callable gets the value that is there and returns the new one.
    """
    changed = copy.deepcopy(document)
    *folders, last = path.split(".")
    place = changed
    for name in folders:
        place = place[_key(place, name)]
    key = _key(place, last)
    if value is MISSING:
        del place[key]
    else:
        place[key] = value(place[key]) if callable(value) else value
    return changed


def _key(place: Any, name: str) -> str | int:
    return int(name) if isinstance(place, list) else name
