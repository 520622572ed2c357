"""Charts of the results, drawn from the files of ``docs/data`` while the site is built."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqplan.api.report.drawing.markup import element, text
from seqplan.api.report.drawing.svg import Scale, curve, end_labels, label, line, mark

DATA = Path(__file__).parent / "data"
WIDTH, HEIGHT, LEFT, TOP = 720, 320, 56, 34
Points = Sequence[tuple[float, float]]

SYSTEMS = {
    "megatron": "Megatron-like windows",
    "megatron-packing": "Megatron dynamic CP",
    "static": "best static strategy",
}
"""Key of a system in the file → its name in the chart."""


def draw_contexts() -> str:
    """Return a chart for each number of tokens: other systems over ours, by context."""
    rows = read_rows("contexts.csv")
    charts = []
    for tokens in sorted({int(row["tokens"]) for row in rows}):
        lines = {
            name: [
                (float(row["context"]), float(row["over_ours"]))
                for row in rows
                if row["system"] == key and int(row["tokens"]) == tokens
            ]
            for key, name in SYSTEMS.items()
        }
        title = f"{tokens:,} tokens a step: iteration of other systems over ours"
        charts.append(draw_lines(title, "context, tokens", lines, (1.0, 1.8), power=2))
    return "\n\n".join(charts)


def draw_scaling() -> str:
    """Return a chart of the planning time by the number of GPUs."""
    rows = read_rows("scaling.csv")
    lines = {"planning a step": [(float(row["gpus"]), float(row["cpu_ms"])) for row in rows]}
    highest = max(value for _, value in lines["planning a step"])
    return draw_lines("CPU time of planning a step, ms", "GPUs", lines, (0.0, highest * 1.1))


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of results."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw_lines(
    title: str,
    axis: str,
    lines: Mapping[str, Points],
    limits: tuple[float, float],
    power: int = 0,
) -> str:
    """Return a figure: lines over a logarithmic axis, each with its name at its end.

    ``power`` 2: values of the axis are multiples of 1,024.
    """
    places = sorted({x for points in lines.values() for x, _ in points})
    right, bottom = WIDTH - 165, HEIGHT - 44
    across = Scale(places[0], places[-1], LEFT + 10, right, log=True)
    up = Scale(*limits, bottom, TOP)
    shapes = [label(0, 14, title, class_="strong")]
    for tick in up.ticks(40):
        shapes.append(line(LEFT, up(tick), right, up(tick), "grid"))
        shapes.append(label(LEFT - 8, up(tick) + 4, f"{tick:,.4g}", anchor="end"))
    for place in places:
        name = f"{place / 1024:,.0f}K" if power == 2 else f"{place:,.0f}"
        shapes.append(label(across(place), bottom + 18, name, anchor="middle"))
    shapes.append(line(LEFT, bottom, right, bottom, "axis"))
    shapes.append(label((LEFT + right) / 2, HEIGHT - 6, axis, anchor="middle", class_="soft"))
    ends = []
    for at, (name, points) in enumerate(lines.items()):
        drawn = [(across(x), up(y)) for x, y in points]
        shapes.append(curve(drawn, at))
        shapes += [mark(x, y, at) for x, y in drawn]
        ends.append((drawn[-1][1], drawn[-1][0], name))
    shapes += end_labels(ends, right, TOP, bottom)
    about = "; ".join(
        f"{name}: " + ", ".join(f"{x:,.0f}: {y:,.4g}" for x, y in points)
        for name, points in lines.items()
    )
    return element(
        "figure",
        element(
            "svg",
            element("title", text(title)),
            element("desc", text(about)),
            "\n".join(shapes),
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            role="img",
        ),
        class_="chart",
    )
