"""The plan format as a JSON Schema, for readers and writers in other languages."""

from __future__ import annotations

from typing import Any

from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.plan import SCHEMA
from seqplan.plans.recomputation import MODES

_Node = dict[str, Any]


def plan_json_schema() -> _Node:
    """Return the JSON Schema (draft 2020-12) of one plan, plan format schema 2.

    It states what ``from_json`` checks except the digest, the equal number of ids and lengths and
    the order of a strategy's schemes; invariants between fields are those of ``lint``. A fresh
    object on every call.
    """
    # Titles and descriptions only add to names.
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "seqplan plan",
        "description": "Everything the ranks need to run one training step.",
        "$defs": {
            "degree": _integer(1),
            "scheme": _object(_degrees()),
            "ranks": {"type": "array", "items": _integer(0)},
            "time": _time("milliseconds"),
        },
        **_object(
            {
                "schema": {"const": SCHEMA, "type": "integer"},
                "step": _integer(0),
                "digest": {
                    "type": "string",
                    "pattern": "^sha256:[0-9a-f]{64}$",
                    "description": "of the canonical JSON without this field",
                },
                "provenance": _provenance(),
                "world_size": _integer(1),
                "sequences": _sequences(),
                "tokens": _integer(0, "sum of the lengths"),
                "loss_tokens": _integer(0, "what every loss is divided by, once"),
                "pipelines": {"type": "array", "items": _pipeline()},
                "idle_ranks": {"$ref": "#/$defs/ranks"},
                "groups": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/ranks"},
                    "description": "every process group of the step, in creation order",
                },
                "predicted_ms": {"$ref": "#/$defs/time"},
                "lower_bound_ms": {"$ref": "#/$defs/time"},
                "gap": _time("predicted_ms / lower_bound_ms − 1"),
                "selection": {"type": "array", "items": _candidate_schema()},
            },
            {
                "layout_lower_bound_ms": _time(
                    "milliseconds, over all plans of the same tp and pp"
                ),
                "layout_gap": _time("predicted_ms / layout_lower_bound_ms − 1"),
                "expert_parallel": _integer(2, "degree by which experts are split; absent if 1"),
                "shapes": {
                    "type": "array",
                    "items": _integer(1),
                    "description": "tokens on a rank to which micro-batches are padded, "
                    "ascending; absent if each has its size",
                },
                "lost_ranks": {
                    "type": "array",
                    "items": _integer(0),
                    "description": "idle ranks that the plan was made without; absent if none",
                },
                "sync_ms": _time(
                    "milliseconds of the gradient sync next to predicted_ms, as "
                    "far as nothing hides it; where strategies were chosen with it"
                ),
            },
        ),
    }


def _provenance() -> _Node:
    return _object(
        {
            "version": {"type": "string"},
            "seed": _integer(0),
            "profile": {"type": "string", "description": "digest of the profile"},
            "proposal": {"type": ["string", "null"], "description": "digest of the proposal"},
        },
        {
            "robust": {
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "description": "share by which a, b or c of the costs may be off; absent without",
            }
        },
    )


def _sequences() -> _Node:
    return _object(
        {
            "ids": {
                "type": "array",
                "items": _integer(0),
                "description": "the data set's sample indices",
            },
            "lengths": {"type": "array", "items": _integer(1), "description": "tokens"},
        },
        {
            "loads": {
                "type": "array",
                "minItems": 1,
                "items": _load_schema(),
                "description": "work before the language model, by phase; absent if none",
            }
        },
    )


def _load_schema() -> _Node:
    return _object(
        {
            "name": {"type": "string"},
            "tokens": {
                "type": "array",
                "items": _integer(0),
                "description": "of each sequence in the phase, such as patches",
            },
            "work_ms": {
                "type": "array",
                "items": {"$ref": "#/$defs/time"},
                "description": "milliseconds of each sequence on one rank; the ranks of a pipeline "
                "compute equal parts",
            },
            "overhead_ms": _time("milliseconds of a micro-batch in which a sequence has work"),
        },
        {"capacity": _integer(1, "tokens of a micro-batch on a rank; absent if any number")},
    )


def _pipeline() -> _Node:
    return _object(
        {
            "scheme": {"$ref": "#/$defs/scheme"},
            "ranks": {
                "$ref": "#/$defs/ranks",
                "description": "order from fastest: tp, ulysses, ring, pp",
            },
            "micro_batches": {"type": "array", "items": _micro_batch()},
            "predicted_ms": {"$ref": "#/$defs/time"},
        },
        {
            "micro_step": _integer(0, "in lockstep only"),
            "slowdown": {
                "type": "number",
                "minimum": 1,
                "description": "times as long as the profile has it, by its slowest rank; absent "
                "if it is as fast",
            },
        },
    )


def _micro_batch() -> _Node:
    return _object(
        {
            "sequences": {
                "type": "array",
                "items": _integer(0),
                "description": "positions in sequences.*, in packed order",
            },
            "tokens": _integer(0),
            "padded_tokens": _integer(0),
            "cost_ms": {"$ref": "#/$defs/time"},
        },
        {
            "recompute": {
                "enum": list(MODES),
                "description": "recomputation mode; absent if the profile has one",
            },
            "offload_layers": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "share of the layers whose activations go to host memory; absent "
                "if none",
            },
            "shared_ms": _time(
                "milliseconds of cost_ms that a block of expert parallelism spreads over its "
                "ranks; absent if none"
            ),
        },
    )


def _candidate_schema() -> _Node:
    predicted = {
        "anyOf": [{"$ref": "#/$defs/time"}, {"type": "null"}],
        "description": "null when the bound pruned the candidate; with stages an estimate, unless "
        "it is chosen",
    }
    strategy = {
        "type": "array",
        "items": _object({**_degrees(), "count": {"$ref": "#/$defs/degree"}}),
    }
    return _object(
        {
            "strategy": strategy,
            "lower_bound_ms": {"$ref": "#/$defs/time"},
            "predicted_ms": predicted,
        },
        {"sync_ms": {"$ref": "#/$defs/time"}},
    )


def _degrees() -> _Node:
    return {axis: {"$ref": "#/$defs/degree"} for axis in ("tp", "pp", "ulysses", "ring")}


def _object(properties: _Node, optional: _Node | None = None) -> _Node:
    """Describe an object with exactly these properties, of which some may be left out."""
    return {
        "type": "object",
        "properties": properties | (optional or {}),
        "required": list(properties),
        "additionalProperties": False,
    }


def _integer(least: int, description: str | None = None) -> _Node:
    node: _Node = {"type": "integer", "minimum": least, "maximum": MAX_INTEGER}
    return node if description is None else node | {"description": description}


def _time(description: str) -> _Node:
    return {"type": "number", "minimum": 0, "description": description}
