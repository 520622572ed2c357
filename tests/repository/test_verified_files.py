"""Files of ``seqplan profile verify`` that users sent are as their schema has them."""

import json
from pathlib import Path
from typing import Any

import pytest
from folder_graph import ROOT
from jsonschema import ValidationError, validate

SCHEMA = json.loads((ROOT / "docs" / "verified.schema.json").read_text("utf-8"))
FILES = sorted((ROOT / "docs" / "data" / "verified").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sent_file_agrees_with_the_schema(path: Path) -> None:
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    validate(document, SCHEMA)
    assert document["missed"] == sum(check["missed"] for check in document["checks"])


def test_a_file_without_a_figure_is_rejected_by_the_schema() -> None:
    document: dict[str, Any] = json.loads(FILES[0].read_text("utf-8"))
    del document["checks"][0]["figures"][0]["value"]
    with pytest.raises(ValidationError, match="'value' is a required property"):
        validate(document, SCHEMA)
