"""Meaning and example of every field and parameter of the interface: ``described.json``.

A name means the same everywhere. One that does not is there as ``SCHEMA.name``, or
``OPERATION.name`` of a parameter, too. The examples of fields make those of responses.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

_READ = json.loads(
    resources.files("seqplan.api.rest.payloads").joinpath("described.json").read_text("utf-8")
)
DESCRIBED: dict[str, tuple[str, Any]] = {
    name: (of[0], of[1]) for name, of in _READ["fields"].items()
}
"""By name: a sentence, and an example."""

CONTENTS: dict[str, Any] = _READ["contents"]
"""Examples of documents, in part, and of texts, by operation."""


def describe_name(place: str, name: str) -> tuple[str, Any]:
    """Return the sentence and the example of a field or parameter; ``KeyError`` for none.

    ``place``: its schema or operation.
    """
    return DESCRIBED.get(f"{place}.{name}") or DESCRIBED[name]


def make_example(schemas: dict[str, Any], name: str) -> Any:
    """Make an example of a schema from its fields, unless it has one."""
    schema = schemas[name]
    if "example" in schema:
        return schema["example"]
    return {
        field: _make_field_example(schemas, name, field, described)
        for field, described in schema["properties"].items()
    }


def _make_field_example(
    schemas: dict[str, Any], schema: str, field: str, described: dict[str, Any]
) -> Any:
    for inner, form in ((described, 0), (described.get("items", {}), 1)):
        if "$ref" in inner:
            example = make_example(schemas, inner["$ref"].rpartition("/")[2])
            return [example] if form else example
    return describe_name(schema, field)[1]
