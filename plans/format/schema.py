"""The plan format as a JSON Schema, for readers and writers in other languages."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def plan_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one plan, plan format schema 2.

    It states what ``from_json`` checks except the digest, the equal number of ids and lengths and
    the order of a strategy's schemes; invariants between fields are those of ``lint``. A fresh
    object on every call.
    """
    file = resources.files("seqplan.plans.format").joinpath("plan.schema.json")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema
