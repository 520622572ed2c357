"""``seqplan export``: the ids of each rank's micro-batches, for loaders that cannot read plans."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import check_output, count_of
from seqplan.plans.format.export import check_export, export_plans
from seqplan.plans.format.plan_file import check_sound, read_plans

DESCRIPTION = """\
Write the ids of each rank's micro-batches, one line or row for each step and rank, for data loaders
that cannot read plans and trainers whose groups are set.
"""

EXAMPLES = """\
examples:
  seqplan export plans.jsonl -o ids.jsonl
  seqplan export plans.jsonl -o ids.parquet
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "plans", metavar="plans.jsonl", type=Path)
    add_option(parser, "-o --output FILE", required=True, help=".jsonl or .parquet")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for a bad plan file or another kind of output."""
    check_output(args.output, args.plans)
    check_export(args.output)
    steps = 0
    with export_plans(args.output) as export:
        for plan in read_plans(args.plans):
            check_sound(plan, f"{args.plans}: step {plan.step}")
            export(plan)
            steps += 1
        if not steps:
            raise ValueError(f"{args.plans}: no plans. Name another file, or plan again")
    print(f"exported: {args.output}, {count_of(steps, 'step')}")
    return 0
