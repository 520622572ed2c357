"""The JSON Schema accepts what the codec writes and rejects what it rejects."""

import json
from typing import Any

import pytest
from golden_plans import FILES, FOLDER
from hypothesis import given
from jsonschema import Draft202012Validator
from plan_strategies import plans

from seqplan import Plan, to_json
from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.format.schema import plan_json_schema
from seqplan.plans.plan import SCHEMA
from seqplan.plans.recomputation import MODES

VALIDATOR = Draft202012Validator(plan_json_schema())


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(plan_json_schema())
    assert plan_json_schema() is not plan_json_schema()


def test_the_schema_has_the_limits_of_the_reader() -> None:
    nodes = objects(plan_json_schema())
    assert {node["const"] for node in nodes if "const" in node} == {SCHEMA}
    assert [node["enum"] for node in nodes if "enum" in node] == [list(MODES)]
    integers = [node for node in nodes if node.get("type") == "integer" and "const" not in node]
    assert {node["maximum"] for node in integers} == {MAX_INTEGER}


@pytest.mark.parametrize("name", FILES)
def test_golden_plans_are_valid(name: str) -> None:
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        VALIDATOR.validate(json.loads(line))


@given(plans())
def test_random_plans_are_valid(plan: Plan) -> None:
    VALIDATOR.validate(json.loads(to_json(plan)))


def objects(node: Any) -> list[dict[str, Any]]:
    """Every object inside a JSON value."""
    if isinstance(node, list):
        return [inner for child in node for inner in objects(child)]
    if isinstance(node, dict):
        return [node, *(inner for child in node.values() for inner in objects(child))]
    return []


def test_every_object_is_closed_and_complete() -> None:
    text = (FOLDER / "micro-steps.jsonl").read_text(encoding="utf-8").splitlines()[0]
    count = len(objects(json.loads(text)))
    for index in range(count):
        fields = json.loads(text)
        objects(fields)[index]["color"] = 1
        assert not VALIDATOR.is_valid(fields)
        for name in objects(json.loads(text))[index]:
            fields = json.loads(text)
            del objects(fields)[index][name]
            assert VALIDATOR.is_valid(fields) == (name in ("micro_step", "sync_ms"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 1),
        ("step", -1),
        ("step", True),
        ("world_size", 0),
        ("digest", "sha256:0"),
        ("gap", None),
        ("predicted_ms", "1"),
        ("idle_ranks", [0.5]),
        ("groups", [1]),
    ],
)
def test_wrong_values_are_rejected(name: str, value: object) -> None:
    fields = json.loads(to_json(FILES["micro-steps.jsonl"]()[0]))
    assert not VALIDATOR.is_valid({**fields, name: value})
