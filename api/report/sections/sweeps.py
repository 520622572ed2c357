"""Sweeps: how much faster ours is than every system, over GPUs, context or tokens."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import element, listing, section, table, text
from seqplan.api.report.drawing.numbers import factor, milliseconds, whole
from seqplan.planner.comparison.sweep import Sweep, SweptPoint

MEANING = {
    "gpus": "number of GPUs",
    "max-len": "longest sequence (tokens)",
    "tokens": "tokens of a step",
}

NAMES = 0.42
"""Share of a figure's width that the names of the lines may take."""


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
            svg.figure(
                f"sweep-{sweep.axis}",
                f"Speed-up of ours by {meaning}",
                f"One line for each other system: its mean iteration over ours at each {meaning}. "
                "The table has the numbers.",
                f"Simulated on profile {profile}. Above the dashed line at 1 ours is faster.",
                lambda width: _chart(sweep, possible, meaning, width),
            )
        )
    parts.append(_table(sweep, meaning))
    if notes := sweep.notes():
        parts.append(element("h3", text(f"Left out, by {meaning}")))
        parts.append(listing(notes))
    return "".join(parts)


def _chart(sweep: Sweep, points: Sequence[SweptPoint], meaning: str, width: float) -> svg.Drawing:
    names = {key: name for key, name in sweep.names().items() if key != "ours"}
    height = max(300.0, 15.0 * len(names) + 90)
    top, bottom = 24.0, height - 38
    room = width * NAMES - 22
    right = width - min(room, max((svg.text_width(n) for n in names.values()), default=0)) - 22
    gains = [system.speedup for point in points for system in point.systems]
    low, high = min(*gains, 1.0), max(*gains, 1.0)
    margin = (high - low) * 0.06 or 0.1
    y = svg.Scale(max(0.0, low - margin), high + margin, bottom, top)
    shapes, left = svg.value_axis(y, right, factor)
    # Values stand side by side: they are few, and rarely evenly spaced on any scale.
    pitch = (right - left - 24) / max(len(points) - 1, 1)
    places = [left + 12 + at * pitch for at in range(len(points))]
    shapes.append(svg.label(0, 12, "speed-up of ours", class_="soft"))
    for x, point in zip(places, points, strict=True):
        shapes.append(svg.label(x, bottom + 16, f"{point.value:,}", anchor="middle"))
    shapes.append(svg.line(left, bottom, right, bottom, "axis"))
    shapes.append(svg.line(left, y(1.0), right, y(1.0), "dashed"))
    shapes.append(
        svg.label((left + right) / 2, height - 4, meaning, anchor="middle", class_="soft")
    )
    ends = []
    for at, (key, name) in enumerate(names.items()):
        line_points = [
            (x, y(system.speedup))
            for x, point in zip(places, points, strict=True)
            for system in point.systems
            if system.key == key
        ]
        shapes.append(svg.curve(line_points, at))
        shapes += [svg.circle(x, rise, 3, "hollow") for x, rise in line_points]
        ends.append((line_points[-1][1], line_points[-1][0], svg.fit(name, room)))
    return svg.Drawing(height, (*shapes, *svg.end_labels(ends, right, top, bottom)))


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
