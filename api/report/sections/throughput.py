"""Tokens per second and speed-up of every system, with the spread over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import factor, milliseconds, percent, ratio, whole
from seqplan.api.report.sections.pick import describe_simulation
from seqplan.planner.comparison.results import Comparison

DOTS = 200
"""Steps up to which every step is a dot."""


def throughput(comparison: Comparison) -> str:
    """Two dot plots and every iteration in a table."""
    names = [system.name for system in comparison.systems]
    rates = [
        [iteration.tokens_per_s for iteration in system.iterations] for system in comparison.systems
    ]
    gains = [comparison.speedups(system) for system in comparison.systems]
    caption = (
        f"{describe_simulation(comparison)} Dots: steps. Line: smallest to largest. "
        "Box: middle half. Bar: median, also written at the right."
    )
    return section(
        "throughput",
        "Throughput and its spread",
        "How many tokens each system trains per second, and how much longer than ours it takes, "
        "step by step on the same batches.",
        svg.figure(
            "rates",
            "Tokens per second",
            "For each system, tokens per second of every step with median, quartiles and extremes.",
            f"{caption} Further right is better.",
            lambda width: _plot(names, rates, width, whole, None),
        ),
        svg.figure(
            "gains",
            "Speed-up of ours",
            "For each other system, its iteration over ours for every step; above 1 ours is "
            "faster.",
            f"{caption} The dashed line at 1 is ours.",
            lambda width: _plot(names[1:], gains[1:], width, factor, 1.0),
        )
        if len(names) > 1
        else "",
        _spread(names, rates, gains),
        _iterations(comparison),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Smallest, lower quartile, median, upper quartile, largest (halves without the median)."""
    ordered = sorted(values)
    half = len(ordered) // 2
    low, high = ordered[:half] or ordered, ordered[-half:] if half else ordered
    return ordered[0], median(low), median(ordered), median(high), ordered[-1]


def _plot(
    names: Sequence[str],
    series: Sequence[Sequence[float]],
    width: float,
    written: Callable[[float], str],
    reference: float | None,
) -> svg.Drawing:
    values = [value for row in series for value in row]
    edges = [*values, reference] if reference is not None else values
    span = max(edges) - min(edges)
    margin = span * 0.04 or max(abs(max(edges)), 1.0) * 0.1
    low = max(0.0, min(edges) - margin)
    scale = svg.Scale(low, max(edges) + margin, 6, width - 6)
    bottom = 44.0 * len(names) + 4
    ticks = scale.ticks(max(60.0, svg.text_width(written(max(values))) + 26))
    shapes = []
    for tick in ticks:
        x = scale(tick)
        shapes.append(svg.line(x, 0, x, bottom, "grid"))
        # Numbers at the edge of the drawing stay inside it.
        half = svg.text_width(written(tick)) / 2
        inside = min(max(x, half), width - half)
        shapes.append(svg.label(inside, bottom + 15, written(tick), anchor="middle"))
    if reference is not None:
        shapes.append(svg.line(scale(reference), 0, scale(reference), bottom, "dashed"))
    for at, (name, row) in enumerate(zip(names, series, strict=True)):
        mine = reference is None and at == 0
        shapes += _row(name, row, scale, 44.0 * at, width, written, mine)
    shapes.append(svg.line(0, bottom, width, bottom, "axis"))
    return svg.Drawing(bottom + 20, tuple(shapes))


def _row(
    name: str,
    values: Sequence[float],
    scale: svg.Scale,
    top: float,
    width: float,
    written: Callable[[float], str],
    mine: bool,
) -> list[str]:
    least, lower, middle, upper, most = quartiles(values)
    style = "strong" if mine else ""
    value = written(middle)
    shapes = [
        svg.label(0, top + 14, svg.fit(name, width - svg.text_width(value) - 16), class_=style),
        svg.label(width, top + 14, value, anchor="end", class_=style),
        svg.line(scale(least), top + 30, scale(most), top + 30, "axis"),
        svg.rect(scale(lower), top + 23, scale(upper) - scale(lower), 14, "box"),
    ]
    if len(values) <= DOTS:
        dot = "dot mine" if mine else "dot"
        shapes += [svg.circle(scale(value), top + 30, 3, dot) for value in values]
    shapes.append(svg.line(scale(middle), top + 20, scale(middle), top + 40, "mark"))
    return shapes


def _spread(
    names: Sequence[str], rates: Sequence[Sequence[float]], gains: Sequence[Sequence[float]]
) -> str:
    header = ["System"]
    for quantity in ("Tokens/s", "Speed-up of ours"):
        header += [f"{quantity}: smallest", "lower quartile", "median", "upper quartile", "largest"]
    rows = [
        [name, *map(whole, quartiles(rate)), *map(factor, quartiles(gain))]
        for name, rate, gain in zip(names, rates, gains, strict=True)
    ]
    return table("Spread over the steps", header, rows)


def _iterations(comparison: Comparison) -> str:
    header = ["System", "Step", "Iteration (ms)", "Forward and backward (ms)", "Sync (ms)"]
    header += ["Optimizer (ms)", "Tokens/s", "Speed-up of ours", "Bubble", "Imbalance"]
    header += ["FLOPs utilization"]
    rows = [
        [
            system.name,
            whole(iteration.step),
            milliseconds(iteration.total_ms),
            milliseconds(iteration.compute_ms),
            milliseconds(iteration.sync_ms),
            milliseconds(iteration.optimizer_ms),
            whole(iteration.tokens_per_s),
            factor(gain),
            percent(iteration.bubble_ratio),
            ratio(iteration.imbalance),
            percent(iteration.mfu),
        ]
        for system in comparison.systems
        for iteration, gain in zip(system.iterations, comparison.speedups(system), strict=True)
    ]
    return table("Every iteration of every system", header, rows)
