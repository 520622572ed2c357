"""How good our plans are proven to be, and what planning them took."""

from __future__ import annotations

from statistics import median

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import element, section, table
from seqplan.api.report.drawing.numbers import milliseconds, percent, whole
from seqplan.planner.comparison.results import Comparison


def planning(comparison: Comparison) -> str:
    """Gap and planning time of each step."""
    iterations = comparison.ours.iterations
    steps = [iteration.step for iteration in iterations]
    gaps = [iteration.gap for iteration in iterations]
    times = [iteration.planning_ms for iteration in iterations]
    parts = []
    if any(gap is not None for gap in gaps):
        known = [gap for gap in gaps if gap is not None]
        parts.append(
            svg.figure(
                "gap",
                "Proven gap of each step",
                "One bar for each step: how much longer the plan takes than its proven bound.",
                f"Predicted time over its lower bound, less one: median {percent(median(known), 2)}"
                f", largest {percent(max(known), 2)}. No dispatch or packing of the plan's "
                "strategy is faster than the bound. Lower is better.",
                lambda width: svg.step_bars(steps, gaps, width, lambda gap: percent(gap, 2), "gap"),
            )
        )
    if any(time is not None for time in times):
        known = [time for time in times if time is not None]
        parts.append(
            svg.figure(
                "planning-time",
                "Planning time of each step",
                "One bar for each step: how long its planning took, in milliseconds.",
                f"Measured where the comparison ran: median {milliseconds(median(known))} ms, "
                f"longest {milliseconds(max(known))} ms. Planning runs ahead of training.",
                lambda width: svg.step_bars(steps, times, width, milliseconds, "ms"),
            )
        )
    if not parts:
        parts.append(element("p", "Neither was recorded."))
    rows = [
        [whole(iteration.step), percent(iteration.gap, 3), milliseconds(iteration.planning_ms)]
        for iteration in iterations
    ]
    return section(
        "planning",
        "Planning",
        "How close to its proven bound each of our plans is, and how long planning it took.",
        *parts,
        table("Gap and planning time", ["Step", "Gap", "Planning (ms)"], rows, left=0),
    )
