"""Sweeps: how much faster ours is than every system, over GPUs, context or tokens."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.api.report.drawing.charts import Axis, Series, draw_chart
from seqplan.api.report.drawing.markup import element, listing, section, table, text
from seqplan.api.report.drawing.numbers import factor, milliseconds, whole
from seqplan.api.report.drawing.rows import figure
from seqplan.planner.comparison.sweep import Sweep, SweptPoint

MEANING = {
    "gpus": "number of GPUs",
    "max-len": "longest sequence (tokens)",
    "tokens": "tokens of a step",
}


def sweeps(swept: Sequence[Sweep], profile: str) -> str:
    """A figure and a table for each swept setting; empty without sweeps."""
    if not swept:
        return ""
    return section(
        "sweeps",
        "What if",
        "The same comparison with one setting changed: the other settings are as above.",
        *(_section(sweep, profile) for sweep in swept),
    )


def _section(sweep: Sweep, profile: str) -> str:
    meaning = MEANING[sweep.axis]
    possible = [point for point in sweep.points if point.systems]
    parts = []
    if possible:
        parts.append(
            figure(
                f"Speed-up of ours by {meaning}",
                f"Simulated on profile {profile}. Above the dashed line at 1 ours is faster.",
                _chart(sweep, possible, meaning),
            )
        )
    parts.append(_table(sweep, meaning))
    if notes := sweep.notes():
        parts.append(element("h3", text(f"Left out, by {meaning}")))
        parts.append(listing(notes))
    return "".join(parts)


def _chart(sweep: Sweep, points: Sequence[SweptPoint], meaning: str) -> str:
    gains = [{system.key: system.speedup for system in point.systems} for point in points]
    values = [1.0, *(gain for of_point in gains for gain in of_point.values())]
    margin = (max(values) - min(values)) * 0.06 or 0.1
    # Places are 0, 1, …: values are few, and rarely evenly spaced on any scale.
    places = range(len(points))
    lines = [
        Series(name, [of_point.get(key) for of_point in gains], marks=tuple(places))
        for key, name in sweep.names().items()
        if key != "ours"
    ]
    return draw_chart(
        f"One line for each other system: its mean iteration over ours at each {meaning}. The "
        "table has the numbers.",
        places,
        Axis(meaning, (-0.3, len(points) - 0.7), names=tuple(f"{p.value:,}" for p in points)),
        Axis("speed-up of ours", (max(0, min(values) - margin), max(values) + margin), "factor"),
        [*lines, Series("ours", [1.0] * len(points), "dashed")],
        height=int(max(320, 15 * len(lines) + 110)),
        names_at_ends=True,
    )


def _table(sweep: Sweep, meaning: str) -> str:
    """Every number: a row for each system at each value."""
    rows = []
    for point in sweep.points:
        rows += [
            [
                system.name,
                whole(point.value),
                whole(point.tokens),
                whole(system.tokens_per_s),
                milliseconds(system.mean_ms),
                milliseconds(system.compute_ms),
                factor(system.speedup),
            ]
            for system in point.systems
        ]
    header = ["System", f"{meaning[0].upper()}{meaning[1:]}", "Tokens of a step", "Tokens/s"]
    header += ["Mean iteration (ms)", "Forward and backward (ms)", "Speed-up of ours"]
    return table(f"By {meaning}", header, rows)
