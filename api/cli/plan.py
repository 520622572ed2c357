"""``seqplan plan``: execution plans, step by step."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from seqplan.api.cli.framework.command import add_command
from seqplan.api.cli.framework.options import add_executor, add_trainer, natural, positive
from seqplan.api.cli.framework.output_file import check_output
from seqplan.api.cli.framework.terminal import ProgressBar, percent, seconds
from seqplan.costs.lengths import read_lengths
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.batches_file import has_batches, read_batches
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.batches.window import WindowReport, WindowSampler
from seqplan.planner.bounds.sequence_costs import sequence_costs
from seqplan.planner.execution import EXECUTIONS
from seqplan.planner.placement.fleet import PipelineClass, drop_dominated
from seqplan.planner.problem import PACKINGS, PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.sync.times import parse_layout
from seqplan.planner.workers.executor import EXECUTORS
from seqplan.planner.workers.produce import produce
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.export import check_export, export_plans
from seqplan.plans.lint import lint
from seqplan.plans.plan import Plan

_DESCRIPTION = """\
Plan the steps of a training run from a proposal: batches drawn from the data set's lengths, or
batches that the trainer has drawn. Every plan is checked before it is written.
"""

_EXAMPLES = """\
examples:
  seqplan plan lengths.npy --proposal proposal.json --tokens 200000 --steps 20 --workers 2 \\
    -o plans.jsonl
  seqplan plan batches.jsonl --proposal proposal.json -o plans.jsonl
a line of batches: {"step":0,"ids":[17,4],"lengths":[812,30977]}
"""

STEPS = 20
"""Steps drawn by default."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the command and its options."""
    parser = add_command(
        subparsers,
        "plan",
        run,
        help="plan steps from a proposal",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "data", metavar="DATA", help="lengths, of which batches are drawn, or batches drawn already"
    )
    parser.add_argument("--proposal", metavar="FILE", type=Path, required=True)
    parser.add_argument(
        "--tokens", metavar="T", type=positive, help="tokens of a step; default: the proposal's"
    )
    parser.add_argument(
        "--steps", metavar="K", type=positive, help=f"steps to draw; default {STEPS}"
    )
    parser.add_argument("--seed", metavar="S", type=natural, default=0)
    parser.add_argument(
        "--packing",
        choices=PACKINGS,
        default=PACKINGS[0],
        help="tight: full micro-batches first (default); even: of about equal tokens, for memory",
    )
    parser.add_argument(
        "--execution",
        choices=EXECUTIONS,
        help="static: without regrouping, for trainers that cannot change groups within a step; "
        "default: the proposal's",
    )
    parser.add_argument(
        "--window",
        metavar="STEPS",
        type=positive,
        default=1,
        help="put the outliers of so many steps together in few of them, so that "
        "other sequences meet in a step than at random; default 1: as drawn",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="solve steps of few sequences whose proven gap is above 1 %% by constraint "
        "programming, for a better plan or a closer bound; takes up to a minute for each",
    )
    parser.add_argument("--workers", metavar="W", type=positive, default=1, help="default 1")
    add_trainer(parser, "the trainer that the proposal has to be made for")
    add_executor(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="plans.jsonl; without it, stdout"
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        type=Path,
        help="also the ids of each rank's micro-batches, .jsonl or .parquet, for loaders that "
        "cannot read plans",
    )
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    return parser


@dataclass(frozen=True)
class StepRow:
    """What a summary needs of one planned step."""

    plan: Plan
    planning_ms: float


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` on bad input, ``Infeasible`` for an impossible step."""
    proposal = Proposal.load(args.proposal)
    if args.trainer not in (None, proposal.trainer):
        made_for = "no trainer" if proposal.trainer is None else proposal.trainer
        raise ValueError(
            f"--trainer {args.trainer}: {args.proposal} was made for {made_for}. Give propose "
            f"--trainer {args.trainer}"
        )
    options = PlanningOptions(
        seed=args.seed, packing=args.packing, execution=args.execution, exact=args.exact
    )
    options.resolve_execution(proposal.problem)
    check_output(args.output, args.proposal, args.data)
    check_output(args.export, args.proposal, args.data, args.output)
    if args.export is not None:
        check_export(args.export)
    batches, steps, truncated, windows = _batches(args, proposal)
    rows = []
    exporting = nullcontext() if args.export is None else export_plans(args.export)
    with _output(args.output) as out, exporting as export, ProgressBar(sys.stderr) as progress:
        for row, line in plan_rows(proposal, batches, options, args.workers, args.executor):
            out.write(line + "\n")
            if export is not None:
                export(row.plan)
            rows.append(row)
            progress("planning steps", len(rows), steps)
    report = sys.stdout if args.output is not None else sys.stderr
    composed = None if windows is None else windows.report()
    if args.json:
        figures = summary(rows, truncated)
        figures |= {} if composed is None else {"window": asdict(composed)}
        print(json.dumps(figures), file=report)
    else:
        lines = summary_lines(rows, truncated)
        if composed is not None:
            lines += window_lines(args.window, composed)
        print("\n".join(lines), file=report)
        if args.output is not None:
            print(f"written: {args.output}")
    if args.export is not None and not args.json:
        print(f"exported: {args.export}", file=report)
    return 0


def plan_rows(
    proposal: Proposal,
    batches: Iterable[Batch],
    options: PlanningOptions,
    workers: int,
    executor: str = EXECUTORS[0],
) -> Iterator[tuple[StepRow, str]]:
    """Plan and check steps in order. ``RuntimeError`` if a plan breaks a rule, which is a bug."""
    models = proposal.cluster.models(proposal.profile)
    for planned in produce(proposal, batches, options=options, workers=workers, executor=executor):
        plan = from_json(planned.line)
        if broken := lint(plan, models):
            raise RuntimeError(
                f"step {plan.step}: the plan breaks a rule, please report: {broken[0]}"
            )
        yield StepRow(plan, planned.planning_ms), planned.line


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
            f"{figures['steps']} steps planned and checked, {figures['tokens']:,} tokens: "
            f"{seconds(figures['predicted_ms_mean'])} a step predicted{sync}, "
            f"{figures['tokens_per_s']:,.0f} tokens/s"
        ),
        (
            f"proven gap: median {percent(figures['gap_median'], 2)}, p90 "
            f"{percent(figures['gap_p90'], 2)}, largest {percent(figures['gap_max'], 2)}; "
            f"planning: median {figures['planning_ms_median']:.1f} ms a step"
        ),
        "strategies: "
        + ", ".join(f"{name} ({count}×)" for name, count in figures["strategies"].items()),
    ]
    if truncated:
        lines.append(f"{truncated:,} sequences of the data set truncated")
    return lines


def window_lines(window: int, report: WindowReport) -> list[str]:
    """What windows of steps have moved, and what that does to sampling."""
    if not report.moved_sequences:
        return [f"windows of {window} steps: no sequence was moved, the steps are as drawn"]
    drawn, composed = (percent(spread) for spread in report.long_spread)
    return [
        (
            f"windows of {window} steps: {report.moved_sequences:,} sequences with "
            f"{percent(report.moved_tokens)} of the tokens run in another step than drawn, "
            f"{report.mean_delay:.1f} steps early or late on average, at most "
            f"{report.largest_delay}"
        ),
        (
            "  long sequences meet more often than at random: their share of a step's tokens has a "
            f"standard deviation of {composed}, {drawn} as drawn"
        ),
    ]


def _batches(
    args: argparse.Namespace, proposal: Proposal
) -> tuple[Iterable[Batch], int, int, WindowSampler | None]:
    """Batches, their number, how many sequences were truncated, and who composes windows if any."""
    limit = proposal.cluster.max_len
    if has_batches(args.data):
        drawing = {"tokens": args.tokens, "steps": args.steps, "window": args.window > 1}
        if given := [name for name, value in drawing.items() if value]:
            raise ValueError(
                f"--{given[0]} is for lengths: {args.data} has batches, which are drawn already. "
                f"Leave --{given[0]} out"
            )
        batches = list(read_batches(Path(args.data), limit))
        return batches, len(batches), 0, None
    lengths = read_lengths([args.data]).values
    steps = args.steps or STEPS
    tokens = args.tokens or proposal.cluster.tokens
    sampler = Sampler(lengths, tokens, limit, args.seed)
    if args.window == 1:
        return sampler.batches(steps), steps, sampler.truncated, None
    costs = sequence_costs(_classes(proposal), sampler.lengths, proposal.cluster.gpus)
    windows = WindowSampler(sampler, args.window, costs, args.seed)
    return windows.batches(steps), steps, sampler.truncated, windows


def _classes(proposal: Proposal) -> list[PipelineClass]:
    """The pipelines that steps may use: of the layout that the proposal chose, or all."""
    models = proposal.cluster.models(proposal.profile)
    if proposal.layouts is not None and proposal.layouts.chosen is not None:
        layout = parse_layout(proposal.layouts.chosen)
        models = {s: m for s, m in models.items() if (s.tp, s.pp) == layout}
    return [PipelineClass.from_model(model, 1) for model in drop_dominated(models).values()]


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
    else:
        with atomic_write(path, "w") as file:
            yield file
