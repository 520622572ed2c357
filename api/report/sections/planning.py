"""How good our plans are proven to be, and what planning them took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from seqplan.api.report.drawing.charts import Axis, Series, draw_chart
from seqplan.api.report.drawing.markup import element, section, table
from seqplan.api.report.drawing.numbers import milliseconds, percent, whole
from seqplan.api.report.drawing.rows import figure
from seqplan.planner.comparison.results import Comparison


def planning(comparison: Comparison) -> str:
    """Gap and planning time of each step."""
    iterations = comparison.ours.iterations
    steps = [iteration.step for iteration in iterations]
    gaps = [iteration.gap for iteration in iterations]
    times = [iteration.planning_ms for iteration in iterations]
    parts = []
    if known := [gap for gap in gaps if gap is not None]:
        parts.append(
            figure(
                "Proven gap of each step",
                f"Predicted time over its lower bound, less one: median {percent(median(known), 2)}"
                f", largest {percent(max(known), 2)}. No dispatch or packing of the plan's "
                "strategy is faster than the bound. Lower is better.",
                _bars(
                    "One bar for each step: how much longer the plan takes than its proven bound.",
                    *(steps, gaps, "gap", "percent"),
                ),
            )
        )
    if known := [time for time in times if time is not None]:
        parts.append(
            figure(
                "Planning time of each step",
                f"Measured where the comparison ran: median {milliseconds(median(known))} ms, "
                f"longest {milliseconds(max(known))} ms. Planning runs ahead of training.",
                _bars(
                    "One bar for each step: how long its planning took, in milliseconds.",
                    *(steps, times, "ms", "ms"),
                ),
            )
        )
    rows = [
        [whole(iteration.step), percent(iteration.gap, 3), milliseconds(iteration.planning_ms)]
        for iteration in iterations
    ]
    return section(
        "planning",
        "Planning",
        "How close to its proven bound each of our plans is, and how long planning it took.",
        *(parts or [element("p", "Neither was recorded.")]),
        table("Gap and planning time", ["Step", "Gap", "Planning (ms)"], rows, left=0),
    )


def _bars(
    about: str,
    steps: Sequence[int],
    values: Sequence[float | None],
    label: str,
    written: Literal["ms", "percent"],
) -> str:
    """Bars over the steps, none where a value is unknown."""
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    return draw_chart(
        about,
        steps,
        Axis("step", (steps[0] - 0.6, steps[-1] + 0.6)),
        Axis(label, (0.0, highest * 1.04), written),
        [Series(label, values, "bars")],
        height=220,
    )
