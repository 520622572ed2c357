"""Charts with axes: described here as JSON, drawn by uPlot in the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from seqplan.api.report.drawing.markup import element

HEIGHT = 320
"""Height of a chart (px) with its axes, without its legend."""

Look = Literal["line", "hollow", "filled", "large", "bars", "area", "dashed", "solid"]


@dataclass(frozen=True)
class Axis:
    """An axis from the lower to the upper of ``limits``.

    ``written``: how its values are written, ``tokens`` as 4K; ``names``: those of the values
    0, 1, …, in place of numbers. A logarithmic axis has powers of two across and of ten up.
    """

    label: str
    limits: tuple[float, float]
    written: Literal["whole", "ms", "percent", "factor", "rough", "tokens"] = "whole"
    log: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Values over the places of a chart, None if one is unknown.

    ``look``: a line; hollow, filled or large hollow points; bars; the area below steps; a
    reference line, dashed or solid. ``marks``: indexes of the places at which a line has a point.
    """

    name: str
    values: Sequence[float | None]
    look: Look = "line"
    marks: tuple[int, ...] = ()


def draw_chart(
    about: str,
    places: Sequence[float],
    across: Axis,
    up: Axis,
    series: Sequence[Series],
    *,
    height: int = HEIGHT,
    names_at_ends: bool = False,
) -> str:
    """Return a chart of series over ascending ``places``; ``about`` is for screen readers.

    ``names_at_ends``: the name of each line at its end, if there is room; the legend has all.
    """
    described = {
        "about": about,
        "height": height,
        "names_at_ends": names_at_ends,
        "places": [_short(place) for place in places],
        "across": asdict(across),
        "up": asdict(up),
        "series": [
            asdict(one) | {"values": [_short(value) for value in one.values]} for one in series
        ],
    }
    return element(
        "div",
        element("script", _write_json(described), type="application/json"),
        class_="chart",
    )


def space_lengths(first: float, last: float, count: int) -> list[float]:
    """Return lengths that are spaced evenly by their logarithm."""
    return [first * (last / first) ** (at / (count - 1)) for at in range(count)]


def _short(value: float | None) -> float | None:
    """Six significant digits, more than a screen shows."""
    return None if value is None else float(f"{value:.6g}")


def _write_json(value: object) -> str:
    """Return JSON without a sign that could end the script element around it."""
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c")
