"""``seqplan explain``: one step of a plan file in words."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.api.cli.check.check_plans import add_origin, find_models, read_origin
from seqplan.api.cli.framework.options import add_option, natural
from seqplan.api.cli.trace import ASSUMED, find_forward_fraction
from seqplan.costs.profile import Profile
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.check_bounds import witness_of
from seqplan.plans.explain import explain
from seqplan.plans.format.codec import digest, to_json
from seqplan.plans.format.plan_file import find_step
from seqplan.plans.plan import Plan
from seqplan.plans.views.rank_view import rank_view

DESCRIPTION = "Explain one step of a plan file, or show one rank's part of it."

EXAMPLES = """\
examples:
  seqplan explain plans.jsonl --step 3
  seqplan explain plans.jsonl --step 3 --rank 17
  seqplan explain plans.jsonl --step 3 --witness --proposal proposal.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("plans", metavar="plans.jsonl", type=Path)
    add("--step K", type=natural, required=True)
    part = parser.add_mutually_exclusive_group()
    add_option(part, "--rank R", help="this rank's view, as JSON")
    add("--json", help="the plan itself, as JSON")
    add_option(
        part,
        "--witness",
        help="the proof of the bound: values of sequences and prices of pipelines, as JSON",
    )
    add_origin(parser, "what groups hold and cost is explained as well")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` when the file has no such step or the step no such rank."""
    plan = find_step(args.plans, args.step)
    if args.rank is not None:
        if args.rank >= plan.world_size:
            raise ValueError(
                f"{args.plans}: rank {args.rank} is not among the step's {plan.world_size} ranks"
                f". Give one of 0 to {plan.world_size - 1}"
            )
        print(json.dumps(rank_view(plan, args.rank, digest=digest(plan)).to_dict()))
    elif args.witness:
        print(json.dumps(_witness(plan, args)))
    elif args.json:
        print(to_json(plan))
    else:
        profile, proposal = read_origin(args)
        models, _ = find_models(plan, profile, proposal, str(args.plans))
        print(explain(plan, models))
        known = profile if proposal is None else proposal.profile
        print(_describe_simulation(plan, known, str(args.plans)))
    return 0


def _describe_simulation(plan: Plan, profile: Profile | None, plans: str) -> str:
    """Describe the time of the step by the 1F1B simulation."""
    share, source = find_forward_fraction(plan, profile, plans)
    has_stages = any(pipeline.scheme.pp > 1 for pipeline in plan.pipelines)
    how = f"; forward's share of a micro-batch {source}" if has_stages and source == ASSUMED else ""
    return f"1F1B simulation: {simulate_plan_ms(plan, share):,.1f} ms{how}"


def _witness(plan: Plan, args: argparse.Namespace) -> dict[str, Any]:
    """Find the proof of the step's bound; ``ValueError`` if none can be written."""
    models, _ = find_models(plan, *read_origin(args), str(args.plans))
    if models is None:
        raise ValueError("--witness needs the costs of schemes. Give --profile or --proposal")
    if any(pipeline.micro_step is not None for pipeline in plan.pipelines):
        raise ValueError(
            f"step {plan.step} runs in micro-steps, whose bound needs no prices. "
            "Give seqplan check plans --prove"
        )
    return witness_of(plan, models)
