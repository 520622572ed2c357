"""The answer first: how fast every system is, and what to make of it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from seqplan.api.report.drawing import numbers
from seqplan.api.report.drawing.markup import element, listing, section, table, text
from seqplan.api.report.drawing.rows import figure, legend, piece, row, track
from seqplan.api.report.sections.pick import describe_simulation
from seqplan.planner.comparison.advice import rivals
from seqplan.planner.comparison.nearest import measure_speedup
from seqplan.planner.comparison.results import Comparison, System

ANSWERS = {True: "yes", False: "no", None: "open"}

PARTS = (
    ("compute", "forward and backward"),
    ("sync", "sync that is not hidden"),
    ("optimizer", "optimizer"),
)
"""Fills and meanings of a bar's parts."""


def headline(comparison: Comparison) -> str:
    """Return mean iterations of all systems, advice, skipped systems and assumptions."""
    origin = describe_simulation(comparison)
    answer = f"Does it pay: {ANSWERS[comparison.pays]}. {comparison.advice}"
    parts = [element("p", text(answer), class_="advice"), _facts(comparison)]
    parts.append(
        figure("Mean iteration", f"{origin} Shorter is better.", legend(PARTS), *_bars(comparison))
    )
    parts.append(_tables(comparison))
    if comparison.left_out:
        parts.append(element("h3", "Left out"))
        parts.append(listing(f"{name}: {why}" for name, why in comparison.left_out))
    if comparison.assumptions:
        parts.append(element("h3", "Assumptions"))
        parts.append(listing(comparison.assumptions))
    return section(
        "summary",
        "Ours and the others",
        f"Mean iteration, tokens per second and speed-up over the same "
        f"{len(comparison.ours.iterations):,} batches, simulated on profile {comparison.profile}.",
        *parts,
    )


def _facts(comparison: Comparison) -> str:
    ours = comparison.ours
    facts = [
        ("Mean iteration, ours", numbers.duration(ours.mean_ms), ours.name),
        (
            "Tokens per second, ours",
            numbers.whole(ours.tokens_per_s),
            f"on {comparison.gpus:,} GPUs",
        ),
    ]
    references = rivals(comparison.systems)
    if comparison.today is not None:
        references.append(comparison.today)
    for reference, system in references:
        rival = measure_speedup(system, ours)
        note = f"{rival.name}; {rival.interval_text}"
        facts.append((f"Speed-up over {reference}", numbers.factor(rival.speedup), note))
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", text(name)),
                element("dd", text(value), element("small", text(note))),
            )
            for name, value, note in facts
        ),
        class_="facts",
    )


def _means(system: System) -> list[float]:
    """Return mean forward and backward, sync and optimizer, ms."""
    count = len(system.iterations)
    return [
        sum(iteration.compute_ms for iteration in system.iterations) / count,
        sum(iteration.sync_ms for iteration in system.iterations) / count,
        sum(iteration.optimizer_ms for iteration in system.iterations) / count,
    ]


def _bars(comparison: Comparison) -> Iterator[str]:
    """Yield a row for each system, its mean iteration split into parts."""
    longest = max(system.mean_ms for system in comparison.systems)
    for system in comparison.ranked:
        pieces, left = [], 0.0
        for part, (class_, _) in zip(_means(system), PARTS, strict=True):
            width = part / longest
            if part > 0:
                pieces.append(piece(class_, left, width, f"{numbers.milliseconds(part)} ms"))
            left += width
        value = f"{numbers.milliseconds(system.mean_ms)} ms"
        yield row(system.name, value, track(*pieces), strong=system is comparison.ours)


def _tables(comparison: Comparison) -> str:
    """What counts first, then what it is made of, then what the systems are."""
    header = ["System", "Dispatch and packing", "Mean iteration (ms)", "Tokens/s"]
    header += ["Speed-up of ours, of the means", "smallest step", "median step", "largest step"]
    rows, makings = [], []
    for system in comparison.ranked:
        values = comparison.speedups(system)
        iterations = system.iterations
        rows.append(
            [
                system.name,
                "ours" if system.balanced or system is comparison.ours else "its rules",
                numbers.milliseconds(system.mean_ms),
                numbers.whole(system.tokens_per_s),
                numbers.factor(system.mean_ms / comparison.ours.mean_ms),
                *(numbers.factor(pick(values)) for pick in (min, median, max)),
            ]
        )
        makings.append(
            [
                system.name,
                *(numbers.milliseconds(part) for part in _means(system)),
                numbers.percent(numbers.mean(iteration.bubble_ratio for iteration in iterations)),
                numbers.ratio(numbers.mean(iteration.imbalance for iteration in iterations)),
                numbers.percent(system.mfu),
            ]
        )
    made_of = ["System", "Forward and backward (ms)", "Sync (ms)", "Optimizer (ms)"]
    made_of += ["Bubble", "Imbalance", "FLOPs utilization"]
    about = [[system.name, system.description] for system in comparison.ranked]
    return (
        table("Systems, over the steps", header, rows, left=2)
        + table("What an iteration is made of, means", made_of, makings)
        + table("What each system is", ["System", "Description"], about, left=2)
    )
