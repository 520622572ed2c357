"""Charts of the results, described from the files of ``docs/data`` while the site is built."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from seqplan.api.report.drawing.charts import Axis, Series, draw_chart
from seqplan.api.report.drawing.markup import element, text

DATA = Path(__file__).parent / "data"

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
            name: {
                float(row["context"]): float(row["over_ours"])
                for row in rows
                if row["system"] == key and int(row["tokens"]) == tokens
            }
            for key, name in SYSTEMS.items()
        }
        title = f"{tokens:,} tokens a step: iteration of other systems over ours"
        up = Axis("over ours", (1.0, 1.8), "factor")
        charts.append(draw_lines(title, "context, tokens", lines, up, "tokens"))
    return "\n\n".join(charts)


def draw_scaling() -> str:
    """Return a chart of the planning time by the number of GPUs."""
    times = {float(row["gpus"]): float(row["cpu_ms"]) for row in read_rows("scaling.csv")}
    up = Axis("ms", (0.0, max(times.values()) * 1.1))
    return draw_lines("CPU time of planning a step", "GPUs", {"planning a step": times}, up)


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of results."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw_lines(
    title: str,
    label: str,
    lines: Mapping[str, Mapping[float, float]],
    up: Axis,
    written: Literal["whole", "tokens"] = "whole",
) -> str:
    """Return a figure: lines over their places, each with its name at its end."""
    places = sorted({place for points in lines.values() for place in points})
    about = "; ".join(
        f"{name}: " + ", ".join(f"{x:,.0f}: {y:,.4g}" for x, y in points.items())
        for name, points in lines.items()
    )
    series = [
        Series(name, [points.get(place) for place in places], marks=tuple(range(len(places))))
        for name, points in lines.items()
    ]
    across = Axis(label, (places[0] * 0.95, places[-1] * 1.05), written, log=True)
    chart = draw_chart(f"{title}. {about}", places, across, up, series, names_at_ends=True)
    return element("figure", element("figcaption", text(title)), chart)
