"""Work of a trainer's samples before the language model, as its settings describe it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqplan.costs.lengths.sources.grids import is_grid_field, list_frames
from seqplan.planner.balance.cost import Cost
from seqplan.planner.balance.phase import Phase
from seqplan.plans.format.canonical import parse_json

VARIABLE = "SEQPLAN_LOADS"
"""Environment variable with loads by name, as JSON."""


@dataclass(frozen=True)
class SampleLoad:
    """A phase before the language model: the field of its tokens, its cost and its capacity."""

    name: str
    column: str
    cost: Cost
    capacity: int | None = None

    @classmethod
    def list_from_value(cls, value: Any) -> list[SampleLoad]:
        """Read ``{vision: {column: image_grid_thw, cost: [a, b, c], capacity: 32768}}``.

        ``capacity`` may be left out. ``TypeError`` and ``ValueError`` name the load.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r:.60}. Give {{name: {{column, cost, capacity}}}}")
        return [cls._from_fields(str(name), fields) for name, fields in value.items()]

    @classmethod
    def list_from_environment(cls) -> list[SampleLoad]:
        """Read ``SEQPLAN_LOADS``, none if it is not set. ``ValueError`` as ``list_from_value``."""
        text = os.environ.get(VARIABLE)
        try:
            return cls.list_from_value(parse_json(text)) if text else []
        except (TypeError, ValueError) as error:
            raise ValueError(f"{VARIABLE}: {error}") from None

    @classmethod
    def _from_fields(cls, name: str, fields: Any) -> SampleLoad:
        if not isinstance(fields, Mapping) or not {"column", "cost"} <= {*fields}:
            raise ValueError(f"{name}: {fields!r}. Give column and cost, and capacity if need be")
        if unknown := {*fields} - {"column", "cost", "capacity"}:
            raise ValueError(f"{name}: unknown field {min(unknown)}. Leave it out")
        capacity = fields.get("capacity")
        if capacity is not None and (type(capacity) is not int or capacity < 1):
            raise ValueError(f"{name}: capacity {capacity!r}. Give a number of tokens")
        try:
            a, b, c = map(float, fields["cost"])
        except (TypeError, ValueError):
            raise ValueError(f"{name}: cost {fields['cost']!r}. Give [a, b, c]") from None
        return cls(name, str(fields["column"]), Cost(a, b, c), capacity)

    def make_phase(self, values: Sequence[Any]) -> Phase:
        """Make the phase of samples with these values of the column.

        Grids of images or videos, as of ``image_grid_thw``, or a number of tokens or a list of
        them; None without any. ``TypeError`` and ``ValueError`` for other values.
        """
        if is_grid_field(self.column):
            listed = [list_frames(v, self.column, f"sample {i}") for i, v in enumerate(values)]
        else:
            listed = [value if isinstance(value, list) else [value or 0] for value in values]
        return Phase(self.name, listed, self.cost, self.capacity)
