"""How evenly the ranks are loaded: forward and backward per rank, ours and another system."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import fmean

from seqplan.api.report.drawing import svg
from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import milliseconds, percent, ratio, whole
from seqplan.api.report.sections.pick import describe_simulation, shown_rival, slowest
from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.simulation.iteration import Iteration
from seqplan.plans.ranges import ranges_text


def load(comparison: Comparison) -> str:
    """Return bars by rank at our slowest step, its figures and a table of ranks."""
    at = slowest(comparison.ours)
    rival = shown_rival(comparison)
    systems = [comparison.ours] if rival is None else [comparison.ours, rival[1]]
    against = "" if rival is None else f", ours and under {rival[1].name}, {rival[0]}"
    iterations = [(system, system.iterations[at]) for system in systems]
    highest = max(
        max((*iteration.rank_busy_ms, iteration.compute_ms)) for _, iteration in iterations
    )
    step = comparison.ours.iterations[at].step
    figures = [_figure(comparison, system, iteration, highest) for system, iteration in iterations]
    return section(
        "load",
        "Load of the ranks",
        f"How long each rank computes at our slowest step ({step:,}){against}; the rest up to "
        "the end of forward and backward is waiting.",
        *figures,
        _summary(iterations),
        _ranks(iterations),
    )


def _figure(comparison: Comparison, system: System, iteration: Iteration, highest: float) -> str:
    ours = system is comparison.ours
    return svg.figure(
        f"load-{'ours' if ours else 'other'}",
        f"Step {iteration.step:,}: {system.name}",
        f"One bar for each rank: its forward and backward time; mean "
        f"{milliseconds(fmean(iteration.rank_busy_ms or (0.0,)))} ms, forward and backward end at "
        f"{milliseconds(iteration.compute_ms)} ms.",
        f"{describe_simulation(comparison)} Dashed: mean of the ranks. "
        f"Thick line: end of forward and backward. Imbalance {ratio(iteration.imbalance)}, "
        f"bubble {percent(iteration.bubble_ratio)}.",
        lambda width: _bars(iteration, highest, width, ours),
    )


def _bars(iteration: Iteration, highest: float, width: float, ours: bool) -> svg.Drawing:
    top, bottom = 22.0, 170.0
    y = svg.Scale(0, highest * 1.04 or 1.0, bottom, top)
    shapes, left = svg.value_axis(y, width, whole)
    shapes.append(svg.label(0, 12, "ms", class_="soft"))
    busy = iteration.rank_busy_ms
    pitch = (width - left) / max(len(busy), 1)
    gap = min(2.0, pitch / 4) if pitch > 4 else 0.0
    bars = []
    for first, after, value in _runs(busy) if not gap else _bins_of(busy):
        x, size = left + first * pitch, (after - first) * pitch - gap
        rise = svg.number(bottom - y(value))
        bars.append(f"M{svg.number(x)} {svg.number(bottom)}v-{rise}h{svg.number(size)}v{rise}z")
    shapes.append(svg.path("".join(bars), "ours" if ours else "other"))
    average = y(fmean(busy or (0.0,)))
    # A dark dash would not show on a dark bar: a band of the page's color lies under it.
    shapes.append(svg.line(left, average, width, average, "band"))
    shapes.append(svg.line(left, average, width, average, "dashed"))
    end = y(iteration.compute_ms)
    shapes.append(svg.line(left, end, width, end, "mark"))
    shapes.append(svg.line(left, bottom, width, bottom, "axis"))
    every = max(1, -int(-(svg.text_width(f"{len(busy):,}") + 14) // pitch))
    # Multiples of a power of two, as ranks are counted.
    every = 1 << (every - 1).bit_length()
    for rank in range(0, len(busy), every):
        middle = left + (rank + 0.5) * pitch
        shapes.append(svg.label(middle, bottom + 15, f"{rank:,}", anchor="middle"))
    shapes.append(
        svg.label((left + width) / 2, bottom + 31, "rank", anchor="middle", class_="soft")
    )
    return svg.Drawing(bottom + 36, tuple(shapes))


def _bins_of(values: Sequence[float]) -> list[tuple[int, int, float]]:
    return [(rank, rank + 1, value) for rank, value in enumerate(values)]


def _runs(values: Sequence[float]) -> list[tuple[int, int, float]]:
    """Ranks [first, after) of equal load."""
    runs: list[tuple[int, int, float]] = []
    for rank, value in enumerate(values):
        if runs and runs[-1][2] == value:
            runs[-1] = (runs[-1][0], rank + 1, value)
        else:
            runs.append((rank, rank + 1, value))
    return runs


def _summary(iterations: Sequence[tuple[System, Iteration]]) -> str:
    header = ["System", "Least loaded (ms)", "Mean (ms)", "Most loaded (ms)"]
    header += ["Forward and backward (ms)", "Imbalance", "Bubble"]
    rows = [
        [
            system.name,
            milliseconds(min(iteration.rank_busy_ms, default=None)),
            milliseconds(fmean(iteration.rank_busy_ms or (0.0,))),
            milliseconds(max(iteration.rank_busy_ms, default=None)),
            milliseconds(iteration.compute_ms),
            ratio(iteration.imbalance),
            percent(iteration.bubble_ratio),
        ]
        for system, iteration in iterations
    ]
    return table("Load in figures", header, rows)


def _ranks(iterations: Sequence[tuple[System, Iteration]]) -> str:
    """Every rank's load and end, one row for adjacent ranks that agree."""
    header = ["Ranks"]
    for system, _ in iterations:
        header += [f"{system.name}: busy (ms)", f"{system.name}: done at (ms)"]
    columns = [
        column
        for _, iteration in iterations
        for column in (iteration.rank_busy_ms, iteration.rank_end_ms)
    ]
    runs: list[tuple[int, int, list[str]]] = []
    for rank, values in enumerate(zip_longest(*columns)):
        cells = [milliseconds(value) for value in values]
        if runs and runs[-1][2] == cells:
            runs[-1] = (runs[-1][0], rank + 1, cells)
        else:
            runs.append((rank, rank + 1, cells))
    rows = [[ranges_text(range(first, after), ","), *cells] for first, after, cells in runs]
    return table("Every rank", header, rows)
