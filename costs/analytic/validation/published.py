"""The published figures that tables are made of."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from seqplan.costs.model_sizes import ModelSizes


def read_published(name: str) -> Any:
    """Read a file of figures, with their source."""
    folder = resources.files("seqplan.costs.analytic.validation")
    return json.loads(folder.joinpath("figures", name).read_text("utf-8"))


def list_rows(figures: Any, rows: str = "rows", columns: str = "columns") -> list[dict[str, Any]]:
    """List rows of a file of figures as mappings from the columns' names."""
    return [dict(zip(figures[columns], values, strict=True)) for values in figures[rows]]


def sizes_of(figures: Any, model: str) -> ModelSizes:
    """Return the sizes of one of the models of a file of figures."""
    return ModelSizes.from_mapping(
        dict(zip(figures["sizes"], figures["models"][model], strict=True))
    )


def list_left_out() -> list[dict[str, Any]]:
    """List published runs that no table has: identifiers, what they are, source and reason."""
    return list_rows(read_published("left_out.json"))
