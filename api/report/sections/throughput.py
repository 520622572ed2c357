"""Tokens per second and speed-up of every system, with the spread over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import factor, milliseconds, percent, ratio, whole
from seqplan.api.report.drawing.rows import figure, piece, row, scale, track
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
        figure(
            "Tokens per second",
            f"{caption} Further right is better.",
            *_plot(names, rates, whole, None),
        ),
        figure(
            "Speed-up of ours",
            f"{caption} The dashed line at 1 is ours.",
            *_plot(names[1:], gains[1:], factor, 1.0),
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
    written: Callable[[float], str],
    reference: float | None,
) -> Iterator[str]:
    """Yield a row for each series, on one scale, and the ends of the scale."""
    edges = [value for values in series for value in values]
    if reference is not None:
        edges.append(reference)
    margin = (max(edges) - min(edges)) * 0.04 or max(abs(max(edges)), 1.0) * 0.1
    low, high = max(0.0, min(edges) - margin), max(edges) + margin
    for at, (name, values) in enumerate(zip(names, series, strict=True)):
        ordered = [(value - low) / (high - low) for value in values]
        least, lower, middle, upper, most = quartiles(ordered)
        pieces = [piece("range", least, most - least), piece("box", lower, upper - lower)]
        if reference is not None:
            pieces.append(piece("reference", (reference - low) / (high - low)))
        if len(values) <= DOTS:
            pieces += [piece("dot", share) for share in ordered]
        pieces.append(piece("median", middle))
        mine = reference is None and at == 0
        yield row(name, written(median(values)), track(*pieces), strong=mine)
    yield scale(written(low), written(high))


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
