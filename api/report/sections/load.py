"""How evenly the ranks are loaded: forward and backward per rank, ours and another system."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, zip_longest
from statistics import fmean

from seqplan.api.report.drawing.charts import Axis, Series, draw_chart
from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import milliseconds, percent, ratio
from seqplan.api.report.drawing.rows import figure
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
    return figure(
        f"Step {iteration.step:,}: {system.name}",
        f"{describe_simulation(comparison)} Dashed: mean of the ranks. "
        f"Thick line: end of forward and backward. Imbalance {ratio(iteration.imbalance)}, "
        f"bubble {percent(iteration.bubble_ratio)}.",
        _bars(iteration, highest),
    )


def _bars(iteration: Iteration, highest: float) -> str:
    """Draw the busy time over the ranks: one place for all ranks of equal time in a row."""
    busy = iteration.rank_busy_ms or (0.0,)
    places = [rank for rank in range(len(busy)) if rank == 0 or busy[rank] != busy[rank - 1]]
    average, end = fmean(busy), iteration.compute_ms
    count = len(places) + 1
    return draw_chart(
        "The forward and backward time of each rank; mean "
        f"{milliseconds(average)} ms, forward and backward end at {milliseconds(end)} ms.",
        [*places, len(busy)],
        Axis("rank", (0, len(busy))),
        Axis("ms", (0, highest * 1.04 or 1.0)),
        [
            Series("busy", [*(busy[rank] for rank in places), busy[-1]], "area"),
            Series("mean", [average] * count, "dashed"),
            Series("end", [end] * count, "solid"),
        ],
        height=220,
    )


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
    cells = [[milliseconds(value) for value in values] for values in zip_longest(*columns)]
    equal = groupby(range(len(cells)), key=lambda rank: cells[rank])
    rows = [[ranges_text(ranks, ","), *of_rank] for of_rank, ranks in equal]
    return table("Every rank", header, rows)
