"""``seqplan propose``: candidate strategies for a data set."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial

from seqplan.api.cli.framework import options
from seqplan.api.cli.framework.output import (
    ProgressBar,
    check_output,
    count_of,
    seconds,
    table,
)
from seqplan.api.cli.parts.first_proposal import list_short_steps
from seqplan.costs.default_schemes import MOST_RING, find_longest_ring
from seqplan.costs.lengths import read_lengths
from seqplan.planner.proposal.backends import apply_backend
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.proposal.expert_rows import explain_degrees
from seqplan.planner.proposal.layouts import compare_static
from seqplan.planner.proposal.make_proposal import METHODS, make_proposal
from seqplan.planner.proposal.proposal_sync import choose_proposal_sync
from seqplan.plans.format.atomic_file import write_text
from seqplan.plans.percent import percent, wrap_text

DESCRIPTION = """\
Propose parallel strategies for a data set's lengths: the few that together serve its batches best,
each with the time it is expected to take and, for all of them, a lower bound over all strategies.
"""

EXAMPLES = """\
example:
  seqplan propose lengths.npy --profile llama-32b-a800-80gb --gpus 64 \\
    --max-len 32768 --tokens 200000 -o proposal.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(options.add_option, parser)
    options.add_planning_input(parser)
    add(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        help="search: ours (default); eq4: the published dynamic program, relaxed and rounded",
    )
    add("--seed S", default=0)
    options.add_usable_schemes(parser)
    options.add_sync(parser)
    options.add_execution(parser)
    add("-o --output FILE", help="write proposal.json")
    add("--json", help="the proposal on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` on bad input, ``Infeasible`` if nothing can run the data."""
    profile = options.usable_profile(args)
    _, execution = apply_backend(
        profile, args.gpus, args.execution, args.micro_step_multiple, args.trainer
    )
    check_output(args.output, args.data, args.profile)
    lengths = read_lengths([args.data]).values
    workload = options.workload_of(args)
    sync = choose_proposal_sync(
        profile,
        args.gpus,
        args.sync.times,
        args.sync.overlap,
        method=args.method,
        trainer=args.trainer,
    )
    with ProgressBar() as progress:
        proposal = make_proposal(
            profile,
            workload,
            lengths,
            seed=args.seed,
            method=args.method,
            sync=sync,
            execution=execution,
            micro_step_multiple=args.micro_step_multiple,
            trainer=args.trainer,
            progress=progress,
        )
    text = proposal.to_json()
    if args.output is not None:
        write_text(args.output, text)
    if args.json:
        print(json.dumps(json.loads(text), ensure_ascii=False))
    else:
        print("\n".join(proposal_lines(proposal)))
        if args.output is not None:
            print(f"written: {args.output}")
    return 0


def proposal_lines(proposal: Proposal) -> list[str]:
    """A proposal for people: its candidates and what they are worth."""
    rows = [
        (
            str(candidate.strategy),
            str(candidate.strategy.gpus),
            f"{candidate.max_sequence:,}",
            seconds(candidate.expected_ms),
            percent(candidate.runs, 0),
            percent(candidate.wins, 0),
        )
        for candidate in proposal.candidates
    ]
    lines = table(("strategy", "GPUs", "longest", "expected", "can run", "best on"), rows)
    bound = proposal.lower_bound_ms
    labels = [entry.label for entry in proposal.profile.schemes]
    schemes = f"{labels[0]} alone" if len(labels) == 1 else f"these {len(labels)} schemes"
    best = "best candidate per batch"
    if proposal.sync is not None and proposal.execution == "regroup":
        best += ", or groups that regroup within the step if that is faster"
        if proposal.experts:
            best += ", or smaller groups than a block of experts, in lockstep"
    if proposal.in_lockstep:
        best = "micro-steps of groups chosen per step (the rows above: one degree throughout)"
    lines += [
        "",
        (
            f"{best}: {seconds(proposal.expected_ms)} on average over "
            f"{proposal.judged} sampled batches of {proposal.workload.tokens:,} tokens;"
        ),
        (
            f"no strategy of {schemes} on {proposal.workload.gpus} GPUs can be below "
            f"{seconds(bound)} (proven): at most {percent(proposal.expected_ms / bound - 1)} left."
        ),
    ]
    notes = [] if proposal.layouts is None else [*proposal.layouts.why]
    if proposal.profile.expert_parallel > 1:
        notes.append(
            "seqplan compare has the best static run, of any scheme and degree of experts."
        )
    elif proposal.layouts is not None:
        notes.append(compare_static(proposal.layouts, proposal.expected_ms))
    if proposal.experts:
        notes += explain_degrees(proposal.experts, proposal.profile.expert_parallel)
    if proposal.sync is not None:
        times = sorted(proposal.sync.of_strategy_ms(each.strategy) for each in proposal.candidates)
        notes.append(
            f"All with the sync, {_spread(times)}, and without the optimizer. The sync is "
            f"{proposal.sync.source}."
        )
    if derived := count_derived_schemes(proposal):
        of = "scheme of the candidates is" if derived == 1 else "schemes of the candidates are"
        notes.append(
            f"{derived} {of} derived, not measured (seqplan profile show); measuring them on your "
            "GPUs is one command (seqplan profile measure)."
        )
    gpus, known = proposal.workload.gpus, proposal.profile
    rings = max(scheme.ring for scheme in known.by_scheme)
    if (default := find_longest_ring(known, gpus)) > max(rings, MOST_RING):
        measured = any(entry.origin != "derived" for entry in known.schemes)
        notes.append(
            f"The profile's longest ring has {rings} ranks. Profiles derived for {gpus:,} GPUs "
            f"have rings of up to {default}, with which a long sequence takes less time: seqplan "
            f"profile derive --{'profile' if measured else 'model'} … --hardware … --nodes "
            f"{-(-gpus // known.gpus_per_node)} has them."
        )
    if notes:
        lines.append("")
    lines += [line for note in notes for line in wrap_text(note, 98)]
    workload = proposal.workload
    lines += list_short_steps(workload)
    if truncated := proposal.lengths.get("truncated"):
        lines.append(describe_truncated(truncated, workload.max_len))
    return lines


def describe_truncated(count: int, max_len: int) -> str:
    """Describe sequences that are cut to the longest planned (tokens)."""
    return f"{count_of(count, 'sequence')} truncated to {max_len:,} tokens."


def _spread(times: Sequence[float]) -> str:
    """Write the least and the largest of ascending times."""
    least, most = seconds(times[0]), seconds(times[-1])
    return least if least == most else f"{least} to {most}"


def count_derived_schemes(proposal: Proposal) -> int:
    """Count the schemes of the candidates that nobody has measured."""
    origins = proposal.profile.by_scheme
    used = {scheme for candidate in proposal.candidates for scheme, _ in candidate.strategy.counts}
    return sum(origins[scheme].origin == "derived" for scheme in used)
