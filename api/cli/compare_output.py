"""A sweep as text for people and as JSON values."""

from __future__ import annotations

from typing import Any

from seqplan.api.cli.terminal import table
from seqplan.planner.comparison.sweep import Sweep, SweptSystem


def sweep_lines(sweep: Sweep) -> list[str]:
    """A row for each system, a column for each value: tokens/s, and how much faster ours is."""
    rows = []
    for key, name in sweep.names().items():
        row = [name]
        for point in sweep.points:
            system = next((item for item in point.systems if item.key == key), None)
            row.append("—" if system is None else _cell(system))
        rows.append(row)
    header = [f"tokens/s by {sweep.axis}", *(f"{point.value:,}" for point in sweep.points)]
    return table(header, rows) + sweep.notes()


def _cell(system: SweptSystem) -> str:
    if system.key == "ours":
        return f"{system.tokens_per_s:,.0f}"
    return f"{system.tokens_per_s:,.0f} ({system.speedup:.2f}×)"


def sweep_fields(sweep: Sweep) -> dict[str, Any]:
    """All figures of a sweep; ``speedup``: the system's mean iteration over ours."""
    return {
        "axis": sweep.axis,
        "points": [
            {
                "value": point.value,
                "tokens": point.tokens or None,
                "systems": [
                    {
                        "key": system.key,
                        "name": system.name,
                        "mean_ms": round(system.mean_ms, 3),
                        "mean_propagation_ms": round(system.propagation_ms, 3),
                        "tokens_per_s": round(system.tokens_per_s, 1),
                        "speedup": round(system.speedup, 4),
                    }
                    for system in point.systems
                ],
                "left_out": [{"name": name, "why": why} for name, why in point.left_out],
                "not_possible": point.why or None,
            }
            for point in sweep.points
        ],
    }
