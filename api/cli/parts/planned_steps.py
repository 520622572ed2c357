"""Steps planned and checked, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import IO, Any

from seqplan.api.cli.framework.output import ProgressBar, count_of, seconds
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.window import WindowReport
from seqplan.planner.placement.fill import kernel_state
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.workers.executor import Workers
from seqplan.planner.workers.produce import produce
from seqplan.plans.format.codec import from_json
from seqplan.plans.percent import percent
from seqplan.plans.plan import Plan


@dataclass(frozen=True)
class StepRow:
    """What a summary needs of one planned step."""

    plan: Plan
    planning_ms: float


def write_steps(
    proposal: Proposal,
    batches: Iterable[Batch],
    options: PlanningOptions,
    out: IO[str] | None,
    *,
    steps: int,
    workers: Workers | int = 1,
) -> list[StepRow]:
    """Plan so many steps in order, and write each plan's line to ``out``.

    ``RuntimeError`` if a plan breaks a rule, which is a bug.
    """
    rows = []
    with ProgressBar() as progress:
        for planned in produce(proposal, batches, options=options, workers=workers):
            if out is not None:
                out.write(planned.line + "\n")
            rows.append(StepRow(from_json(planned.line), planned.planning_ms))
            progress("planning steps", len(rows), steps)
    return rows


def summary(rows: Sequence[StepRow], truncated: int) -> dict[str, Any]:
    """Figures over the planned steps: times in ms, gaps as shares."""
    predicted = [row.plan.predicted_ms for row in rows]
    whole = [row.plan.predicted_ms + (row.plan.sync_ms or 0.0) for row in rows]
    gaps = sorted(row.plan.gap for row in rows)
    planning = [row.planning_ms for row in rows]
    return {
        "steps": len(rows),
        "tokens": sum(row.plan.tokens for row in rows),
        "truncated": truncated,
        "predicted_ms_mean": round(sum(predicted) / len(predicted), 3),
        **_sync_mean(rows),
        "tokens_per_s": round(sum(row.plan.tokens for row in rows) / sum(whole) * 1000, 1),
        "gap_median": round(median(gaps), 6),
        "gap_p90": gaps[min(len(gaps) - 1, int(0.9 * len(gaps)))],
        "gap_max": gaps[-1],
        "planning_ms_median": round(median(planning), 2),
        "strategies": dict(Counter(row.plan.strategy_text for row in rows).most_common()),
    }


def _sync_mean(rows: Sequence[StepRow]) -> dict[str, float]:
    """The mean sync that nothing hides, where strategies were chosen with it."""
    times = [row.plan.sync_ms for row in rows if row.plan.sync_ms is not None]
    return {"sync_ms_mean": round(sum(times) / len(times), 3)} if times else {}


def summary_lines(rows: Sequence[StepRow], truncated: int) -> list[str]:
    """The same for people."""
    figures = summary(rows, truncated)
    sync = ""
    if "sync_ms_mean" in figures:
        sync = f" and {seconds(figures['sync_ms_mean'])} of sync"
    lines = [
        (
            f"{count_of(figures['steps'], 'step')} planned and checked, "
            f"{figures['tokens']:,} tokens: {seconds(figures['predicted_ms_mean'])} a step "
            f"predicted{sync}, {figures['tokens_per_s']:,.0f} tokens/s without the optimizer"
        ),
        (
            f"proven gap: median {percent(figures['gap_median'], 2)}, p90 "
            f"{percent(figures['gap_p90'], 2)}, largest {percent(figures['gap_max'], 2)}; "
            f"planning: median {figures['planning_ms_median']:.1f} ms a step"
        ),
        f"strategies: {_list_strategies(figures['strategies'])}",
    ]
    plans = [row.plan for row in rows]
    regrouped = [p for p in plans if p.regroups and p.pipelines[0].micro_step is None]
    if regrouped:
        lines.append(
            f"  within {count_of(len(regrouped), 'step')} ranks change groups; a strategy lists "
            "all groups of its step (see explain)"
        )
    if truncated:
        lines.append(f"{count_of(truncated, 'sequence')} of the data set truncated")
    if (state := kernel_state()) != "compiled":
        lines.append(f"fill: {state}; planning takes longer than with compiled code")
    return lines


USUAL_SHARE = 0.25
"""Share by which steps may differ from the requested tokens on average without a line on it."""


def list_mean_tokens(rows: Sequence[StepRow], tokens: int) -> list[str]:
    """State the mean tokens of the steps if they differ much from those requested."""
    mean = sum(row.plan.tokens for row in rows) / len(rows)
    if abs(mean - tokens) <= USUAL_SHARE * tokens:
        return []
    return [f"tokens of a step: {mean:,.0f} on average, {tokens:,} requested"]


MOST_LISTED = 4
"""Strategies of a summary, the most frequent first."""


def _list_strategies(counts: dict[str, int]) -> str:
    listed = [f"{name} ({count}×)" for name, count in list(counts.items())[:MOST_LISTED]]
    others = len(counts) - len(listed)
    return ", ".join(listed + ([f"{others} other{'s' * (others > 1)}"] if others else []))


def window_lines(window: int, report: WindowReport, steps: int) -> list[str]:
    """What windows of steps have moved, and what that does to sampling."""
    rest = steps % window
    cut = (
        f"  the last window has {rest} of its {window} steps, and its mean time is not that of "
        f"whole windows: plan a multiple of {window} steps to compare"
    )
    if not report.moved_sequences:
        return [f"windows of {window} steps: no sequence was moved, the steps are as drawn"]
    drawn, composed = (percent(spread) for spread in report.long_spread)
    return [
        (
            f"windows of {window} steps: {count_of(report.moved_sequences, 'sequence')} with "
            f"{percent(report.moved_tokens)} of the tokens run in another step than drawn, "
            f"{report.mean_delay:.1f} steps early or late on average, at most "
            f"{report.largest_delay}"
        ),
        (
            "  long sequences meet more often than at random: their share of a step's tokens has a "
            f"standard deviation of {composed}, {drawn} as drawn"
        ),
        *([cut] if rest else []),
    ]
