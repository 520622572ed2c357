"""``seqplan explain``: a readable account of one step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from seqplan.api.cli.frame.options import natural
from seqplan.api.cli.frame.verb import add_verb
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.explain import explain
from seqplan.plans.format.codec import digest, to_json
from seqplan.plans.format.plan_file import find_step
from seqplan.plans.views.rank_view import rank_view

_DESCRIPTION = "Explain one step of a plan file, or show one rank's part of it."

_EXAMPLES = """\
examples:
  seqplan explain plans.jsonl --step 3
  seqplan explain plans.jsonl --step 3 --rank 17
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the verb and its options."""
    parser = add_verb(
        subparsers,
        "explain",
        run,
        help="explain one step of a plan file",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("plans", metavar="plans.jsonl", type=Path)
    parser.add_argument("--step", metavar="K", type=natural, required=True)
    parser.add_argument("--rank", metavar="R", type=natural, help="this rank's view, as JSON")
    parser.add_argument("--json", action="store_true", help="the plan itself, as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """The verb. ``ValueError`` when the file has no such step or the step no such rank."""
    plan = find_step(args.plans, args.step)
    if args.rank is not None:
        if args.rank >= plan.world_size:
            raise ValueError(
                f"{args.plans}: rank {args.rank} is not among the step's {plan.world_size} ranks"
            )
        print(json.dumps(rank_view(plan, args.rank, digest=digest(plan)).to_dict()))
    elif args.json:
        print(to_json(plan))
    else:
        print(explain(plan))
        print(f"1F1B simulation: {simulate_plan_ms(plan):,.1f} ms")
    return 0
