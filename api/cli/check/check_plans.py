"""``seqplan check plans``: every rule of the plan format, on every plan of a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import count_of
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.simulation.one_f_one_b import (
    FORWARD_FRACTION,
    ForwardFraction,
    simulate_micro_batches_ms,
)
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.planner.sync.times import layouts_of
from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.lint import lint
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme

DESCRIPTION = """\
Check a plan file: its form and digests, and every rule of the format. With the profile or the
proposal that it was made from, also capacities and costs, and with --prove every bound.
"""

EXAMPLES = """\
examples:
  seqplan check plans plans.jsonl
  seqplan check plans plans.jsonl --profile llama-32b-a800-80gb
  seqplan check plans plans.jsonl --proposal proposal.json --prove
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("plans", metavar="plans.jsonl", type=Path)
    add_origin(parser, "also check capacities and costs")
    add(
        "--prove",
        help="prove every bound anew from the profile or proposal, not only that it fits the plan",
    )
    add(
        "--exact",
        help="with --prove, solve for bounds of steps that were planned with --exact (seconds)",
    )
    add("--json", help="as JSON")


def add_origin(parser: argparse.ArgumentParser, profile_help: str) -> None:
    """Add ``--profile`` and ``--proposal``, of which plans were made."""
    source = parser.add_mutually_exclusive_group()
    add_option(source, "--profile NAME|FILE", help=profile_help)
    add_option(source, "--proposal FILE", help="the same, with its settings")


def read_origin(args: argparse.Namespace) -> tuple[Profile | None, Proposal | None]:
    """Read the profile or the proposal that was named, if one was."""
    profile = None if args.profile is None else find_profile(args.profile)
    return profile, None if args.proposal is None else Proposal.load(args.proposal)


def run(args: argparse.Namespace) -> int:
    """Run the command: 0 if every plan holds, else 1. ``ValueError`` on bad input."""
    profile, proposal = read_origin(args)
    source = profile if proposal is None else proposal.profile
    if args.prove and source is None:
        raise ValueError("--prove needs the profile or the proposal. Give --profile or --proposal")
    if args.exact and not args.prove:
        raise ValueError("--exact is for proofs. Give --prove with it")
    multiple = 1 if proposal is None else proposal.micro_step_multiple
    broken: list[dict[str, Any]] = []
    steps, fewest = 0, 0 if source is None else len(source.schemes)
    for plan in read_plans(args.plans):
        steps += 1
        models, part = find_models(plan, profile, proposal, str(args.plans))
        fraction = FORWARD_FRACTION if part is None else part.forward_fraction
        rules = violations(plan, models, fraction)
        if part is not None:
            rules += _list_foreign(plan, part, proposal)
            fewest = min(fewest, len(part.schemes))
        if args.prove and models is not None and not rules:
            rules = list(find_unproven(plan, models, multiple, exact=args.exact))
        broken += [{"step": plan.step, "rule": line} for line in rules]
    if not steps:
        raise ValueError(f"{args.plans}: no plans. Name another file, or plan again")
    if args.json:
        print(json.dumps({"steps": steps, "broken": broken}))
    else:
        for breach in broken:
            print(f"step {breach['step']}: {breach['rule']}")
        proven = ", every bound proven" if args.prove and not broken else ""
        against = " without a profile: costs and capacities not checked" if models is None else ""
        rules_broken = count_of(len(broken), "broken rule") if broken else "no broken rules"
        if source is not None and fewest < len(source.schemes):
            proven += f", by {fewest} of the profile's {len(source.schemes)} schemes"
        print(f"{count_of(steps, 'plan')}, {rules_broken}{against}{proven}")
    return 1 if broken else 0


def _list_foreign(plan: Plan, profile: Profile, proposal: Proposal | None) -> Iterator[str]:
    """Yield a line for each statement of a plan that its profile or proposal contradicts."""
    if plan.expert_parallel not in profile.expert_degrees:
        degrees = ", ".join(map(str, profile.expert_degrees))
        yield f"expert_parallel: {plan.expert_parallel}, the profile has {degrees}"
    if proposal is None:
        return
    layouts = layouts_of(scheme for scheme, _ in plan.strategy.counts)
    exposed = (
        [None]
        if proposal.sync is None
        else [
            round(proposal.sync.compute_exposed_ms(layouts, regrouping=regroups), 3)
            for regroups in (False, True)  # less is hidden if groups change
        ]
    )
    if plan.sync_ms not in exposed:
        stated, known = ("null" if ms is None else f"{ms:g}" for ms in (plan.sync_ms, exposed[0]))
        yield f"sync_ms: {stated}, by the proposal {known}"


def violations(
    plan: Plan, models: Mapping[Scheme, SchemeModel] | None, forward_fraction: ForwardFraction
) -> list[str]:
    """Every broken rule of one plan, and a predicted time below the 1F1B simulation."""
    lines = lint(plan, models)
    for place, pipeline in enumerate(plan.pipelines):
        if len(pipeline.ranks) != pipeline.scheme.gpus:
            continue  # a broken rule: there may be very many stages
        simulated = simulate_micro_batches_ms(
            pipeline.micro_batches, pipeline.scheme.pp, forward_fraction
        )
        if pipeline.predicted_ms < simulated - 1e-3:
            lines.append(
                f"pipelines[{place}]: predicted {pipeline.predicted_ms} ms, but its 1F1B "
                f"simulation takes {simulated:.3f} ms"
            )
    return lines


def find_models(
    plan: Plan, profile: Profile | None, proposal: Proposal | None, origin: str
) -> tuple[Mapping[Scheme, SchemeModel] | None, Profile | None]:
    """Find the models to check costs against, and their part of the profile.

    ``ValueError`` for a plan of another profile or proposal.
    """
    if proposal is not None:
        if plan.provenance.proposal != proposal.digest:
            raise ValueError(
                f"{origin}: step {plan.step} was planned from another proposal. Give that one"
            )
        workload = proposal.workload.leave_out(len(plan.lost_ranks))
        return workload.models(proposal.profile), find_part(plan, proposal.profile, origin)
    if profile is None:
        return None, None
    part = find_part(plan, profile, origin)
    usable = part.usable(plan.gpus_left, max(plan.lengths), include_flagged=True)
    return {model.scheme: model for model in usable}, part


def find_part(plan: Plan, profile: Profile, origin: str) -> Profile:
    """Return the part of ``profile`` that a plan was made from; ``ValueError`` if it was not."""
    part = profile.with_digest(plan.provenance.profile)
    if part is None:
        raise ValueError(
            f"{origin}: step {plan.step} was planned from another profile than {profile.name} "
            f"({plan.provenance.profile[:19]}…, not {profile.digest[:19]}…). Give that one"
        )
    return part
