"""Which strategy our plans chose at each step, and how often."""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.api.report.drawing.markup import section, table
from seqplan.api.report.drawing.numbers import duration, milliseconds, percent, whole
from seqplan.api.report.drawing.rows import figure, piece, row, scale, track
from seqplan.api.report.sections.pick import describe_simulation, strategy_counts
from seqplan.planner.comparison.results import Comparison
from seqplan.plans.ranges import ranges_text
from seqplan.plans.recomputation import rank_mode

ROWS = 12
"""Strategies with a separate row in the figure; the table has all."""


def strategies(comparison: Comparison) -> str:
    """Choices over the steps and their frequencies."""
    iterations = comparison.ours.iterations
    counted = strategy_counts(iterations)
    many = "" if len(counted) <= ROWS + 1 else f" The last row holds {len(counted) - ROWS:,} more."
    mean = sum(iteration.total_ms for iteration in iterations) / len(iterations)
    return section(
        "strategies",
        "Strategies chosen",
        f"Which of {len(counted):,} strateg{'y' if len(counted) == 1 else 'ies'} our plans ran at "
        "each step: how many pipelines of which scheme.",
        figure(
            "Strategy of each step",
            f"{describe_simulation(comparison)} Filled: the step ran it.{many} "
            f"Mean iteration {duration(mean)}.",
            *_grid(comparison, counted),
        ),
        table(
            "How often",
            ["Strategy", "Steps", "of all", "Which"],
            [
                [
                    *(name, whole(len(at)), percent(len(at) / len(iterations))),
                    ranges_text((iterations[index].step for index in at), ","),
                ]
                for name, at in counted
            ],
        ),
        table(
            "Step by step",
            ["Step", "Strategy", "Longest (tokens)", "Iteration (ms)"],
            [
                [
                    whole(iteration.step),
                    iteration.strategy,
                    whole(iteration.longest),
                    milliseconds(iteration.total_ms),
                ]
                for iteration in iterations
            ],
            left=2,
        ),
        *_modes(comparison),
    )


def _modes(comparison: Comparison) -> Iterator[str]:
    """Yield a table of our recomputation modes, if our plans have several to choose from."""
    used = [mode for iteration in comparison.ours.iterations for mode in iteration.modes]
    if not used:
        return
    rows = []
    tokens, gpu_ms = sum(mode.tokens for mode in used), sum(mode.gpu_ms for mode in used)
    for name in sorted({mode.name for mode in used}, key=rank_mode):
        of_mode = [mode for mode in used if mode.name == name]
        rows.append(
            [
                name,
                whole(sum(mode.micro_batches for mode in of_mode)),
                percent(sum(mode.tokens for mode in of_mode) / tokens),
                percent(sum(mode.gpu_ms for mode in of_mode) / gpu_ms),
            ]
        )
    yield table(
        "Recomputation by micro-batch", ["Mode", "Micro-batches", "Tokens", "GPU-time"], rows
    )


def _grid(comparison: Comparison, counted: list[tuple[str, list[int]]]) -> Iterator[str]:
    """Yield a row for each strategy, most frequent first, then the steps' scale."""
    iterations = comparison.ours.iterations
    rows = counted if len(counted) <= ROWS + 1 else counted[:ROWS]
    if rest := counted[len(rows) :]:
        rows = [*rows, (f"{len(rest):,} others", [index for _, at in rest for index in at])]
    cell = 1 / len(iterations)
    for name, at in rows:
        cells = [piece("ours cell", index * cell, cell) for index in at]
        share = f"{len(at):,} of {len(iterations):,}"
        yield row(name, share, track(piece("stage", 0, 1), *cells))
    yield scale(f"step {iterations[0].step:,}", f"{iterations[-1].step:,}")
