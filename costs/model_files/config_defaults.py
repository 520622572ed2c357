"""Values that the configuration class of a model_type gives to keys that its file leaves out."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from seqplan.costs.model_files.description_file import read_listed


@cache
def read_class_defaults() -> dict[str, dict[str, Any]]:
    """Read the defaults by model_type."""
    return read_listed(Path(__file__).with_name("class_defaults.toml"))


def with_class_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Add the class's values for absent keys; a key that is null stays null."""
    defaults = read_class_defaults().get(str(config.get("model_type")), {})
    return {**defaults, **config}
