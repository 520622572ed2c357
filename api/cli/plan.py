"""``seqplan plan``: from a data set to execution plans, step by step."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework import options
from seqplan.api.cli.framework.model_options import add_model
from seqplan.api.cli.framework.output import ProgressBar, check_output, count_of, create_folder
from seqplan.api.cli.parts.planned_steps import (
    StepRow,
    list_mean_tokens,
    summary,
    summary_lines,
    window_lines,
    write_steps,
)
from seqplan.costs.lengths import Lengths, SourceOptions, read_lengths
from seqplan.costs.lengths.sources.batches import has_batches
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.batches_file import read_batches
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.batches.window import WindowSampler
from seqplan.planner.bounds.sequence_costs import sequence_costs
from seqplan.planner.execution import EXECUTIONS
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.problem import PACKINGS, PlanningOptions
from seqplan.planner.proposal.document import Proposal
from seqplan.planner.sync.times import parse_layout
from seqplan.plans.format.atomic_file import atomic_write, write_text
from seqplan.plans.format.plan_file import check_replaceable
from seqplan.plans.percent import percent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seqplan.costs.profile import Profile
    from seqplan.planner.comparison.results import Comparison

DESCRIPTION = """\
Plan the steps of a training run: batches drawn from the data set's lengths, or batches that the
trainer has drawn. With --proposal its strategies are used. With --model and --hardware, or a
--profile, strategies are proposed first; the output then answers whether plans pay off over what
would run instead. Every plan is checked before it is written.
"""

EXAMPLES = """\
examples:
  seqplan plan chat.jsonl --tokenizer Qwen3-8B/ --model qwen3-8b --hardware h100-80gb --gpus 64
  seqplan plan lengths.npy --model llama3-8b --hardware h100-80gb --gpus 64 --max-len 32768 -o run/
  seqplan plan lengths.npy --proposal proposal.json --tokens 200000 --workers 2 -o plans.jsonl
  seqplan plan batches.jsonl --proposal proposal.json -o plans.jsonl
a line of batches: {"step":0,"ids":[17,4],"lengths":[812,30977]}
a folder, as run/, gets lengths, profile, proposal, plans and the report of the comparison
"""

STEPS = 20
"""Steps drawn by default: as many as an interval of the gain requires, and a few more."""

LARGE_GPUS, LARGE_TOKENS = 256, 400_000
"""Above either, compared systems with long searches are cut short, and labeled so."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(options.add_option, parser)
    add("data", metavar="DATA", help="lengths, token ids, text, chats, or batches drawn already")
    source = parser.add_mutually_exclusive_group(required=True)
    options.add_option(source, "--proposal FILE", help="plan by its strategies")
    options.add_option(source, "--profile NAME|FILE", help="propose with this profile first")
    add_model(source, required=False, purpose="; derive a profile first, and propose")
    add("--hardware NAME|FILE", help="with --model: the devices, such as h100-80gb")
    add("--gpus N", help="required without --proposal")
    add(
        "--max-len L",
        help="truncate sequences to this; default: the proposal's, or the longest sequence",
    )
    options.add_tokenizer(parser)
    add("--tokens T", help="tokens of a step; default: the proposal's")
    add("--steps K", help=f"steps to draw; default {STEPS}")
    add("--seed S", default=0)
    add(
        "--packing",
        choices=PACKINGS,
        default=PACKINGS[0],
        help="tight: full micro-batches first (default); even: of about equal tokens, for memory",
    )
    add(
        "--execution",
        choices=EXECUTIONS,
        help="with --proposal, static plans without regrouping; without, as in propose; default: "
        "the proposal's, or what --trainer runs",
    )
    add(
        "--window STEPS",
        default=1,
        help="put the outliers of so many steps together in few of them, so that other sequences "
        "meet in a step than at random; default 1: as drawn",
    )
    add(
        "--exact",
        help="solve steps of few sequences whose proven gap is above 1 %% by constraint "
        "programming, for a better plan or a closer bound; takes up to a minute for each",
    )
    add(
        "--slowdown RANK=FACTOR[,…]",
        type=options.slow_ranks,
        default=(),
        help="ranks that take so many times as long as the profile has it, as 13=1.3,20=lost; "
        "pipelines with them get less, lost ones nothing, and groups stay within a step",
    )
    options.add_robust(parser)
    options.add_workers(parser, "planners")
    options.add_trainer(parser, "the trainer that runs the plans; a proposal must be made for it")
    add(
        "-o --output FILE|FOLDER",
        help="plans.jsonl or, without --proposal, a folder for all files; default: stdout with "
        "--proposal, else none",
    )
    add("--json", help="the summary as JSON")


@dataclass(frozen=True)
class _Source:
    """What steps are planned from. ``windows``: composes steps, if it was requested."""

    proposal: Proposal
    batches: Iterable[Batch]
    steps: int
    truncated: int
    windows: WindowSampler | None = None
    notes: tuple[str, ...] = ()
    """What its lengths are counted from."""


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` on bad input, ``Infeasible`` for an impossible step."""
    if args.proposal is None:
        folder = args.output if args.output is not None and _is_folder(args.output) else None
        with create_folder(folder):
            return _plan_from_data(args, folder)
    proposal = _load_proposal(args)
    check_output(args.output, args.proposal, args.data)
    check_replaceable(args.output)
    source = _source_of_proposal(args, proposal)
    rows = _plan(args, source, args.output)
    report = sys.stdout if args.output is not None else sys.stderr
    if args.json:
        print(json.dumps(_fields(rows, source)), file=report)
        return 0
    print("\n".join([*_note_lines(source), *_lines(args, rows, source)]), file=report)
    if args.output is not None:
        print(f"written: {args.output}")
    return 0


def _load_proposal(args: argparse.Namespace) -> Proposal:
    """Read the proposal; ``ValueError`` for options that it states or does not support."""
    stated = ("hardware", "gpus", "max_len")
    if given := [name for name in stated if getattr(args, name) is not None]:
        option = given[0].replace("_", "-")
        raise ValueError(f"--{option} is stated by the proposal. Leave it out, or propose again")
    proposal = Proposal.load(args.proposal)
    if args.trainer not in (None, proposal.trainer):
        made_for = "no trainer" if proposal.trainer is None else proposal.trainer
        raise ValueError(
            f"--trainer {args.trainer}: {args.proposal} was made for {made_for}. Give propose "
            f"--trainer {args.trainer}"
        )
    _options(args).resolve_execution(proposal.problem)
    return proposal


def _options(args: argparse.Namespace) -> PlanningOptions:
    """Return the options of planning; without ``--proposal`` the proposed one has the execution."""
    return PlanningOptions(
        seed=args.seed,
        packing=args.packing,
        execution=None if args.proposal is None else args.execution,
        exact=args.exact,
        slowdown=args.slowdown,
        robust=args.robust,
    )


def _supports_exact(args: argparse.Namespace, proposal: Proposal) -> bool:
    try:
        replace(_options(args), exact=True).resolve_execution(proposal.problem)
    except ValueError:
        return False
    return True


def _plan(args: argparse.Namespace, source: _Source, output: Path | None) -> list[StepRow]:
    """Plan the steps of a source and write them; with ``--proposal`` by default to stdout."""
    stdout = None if args.proposal is None else sys.stdout
    with nullcontext(stdout) if output is None else atomic_write(output) as out:
        return write_steps(
            source.proposal,
            source.batches,
            _options(args),
            out,
            steps=source.steps,
            workers=args.workers,
        )


def _plan_from_data(args: argparse.Namespace, folder: Path | None) -> int:
    """Propose for the data, plan steps of it, and compare them."""
    from seqplan.api.cli.parts import first_proposal
    from seqplan.api.cli.parts.compare_output import pay_fields, pay_lines
    from seqplan.api.report import render
    from seqplan.planner.proposal.expert_rows import explain_degrees
    from seqplan.planner.step.slow_ranks import list_factors

    if (args.model is None) != (args.hardware is None):
        raise ValueError("--model and --hardware go together. Give both, or a --profile")
    if has_batches(Path(args.data)):
        raise ValueError(
            f"{args.data} has batches, for which strategies are proposed apart. Propose for them "
            f"(seqplan propose {args.data} … -o proposal.json), and give --proposal"
        )
    plans = args.output if folder is None else folder / "plans.jsonl"
    check_output(plans, args.data, args.profile, args.model, args.hardware)
    check_replaceable(plans)
    if folder is not None:
        first_proposal.check_parts(folder, args.data, args.profile)
    _options(args)  # so that bad options fail before the data is read
    if args.gpus is not None:
        list_factors(args.slowdown, args.gpus)
    with ProgressBar() as progress:
        source_lengths = _read_lengths(args)
        lengths = source_lengths.values
        first = first_proposal.propose_for_data(args, lengths, progress)
        _options(args).resolve_execution(first.proposal.problem)
    source = _draw(args, first.proposal, source_lengths)
    rows = _plan(args, source, plans)
    with ProgressBar() as progress:
        comparison = _compare(args, first.proposal, first.profile, lengths, progress)
    unusual = {"exact": args.exact, "slowdown": args.slowdown, "window": args.window > 1}
    without = [f"--{name}" for name, given in unusual.items() if given]
    left_out = [f"of plans without {' and '.join(without)}"] if without else []
    if folder is not None:
        first_proposal.write_parts(folder, first, lengths)
        sentences = [f"The comparison is {line}." for line in left_out]
        stated = replace(comparison, assumptions=(*comparison.assumptions, *sentences))
        write_text(folder / "report.html", render(stated, first.profile))
    if args.json:
        fields = {"profile": first.origin, **_fields(rows, source)}
        fields |= pay_fields(comparison, first.profile) | {"compared_without": without}
        print(json.dumps(fields, ensure_ascii=False))
        return 0
    workload = first.proposal.workload
    default = " (default, see --tokens)" if args.tokens is None else ""
    lines = [
        *wrap(
            f"{count_of(len(lengths), 'sequence')}, {int(lengths.sum()):,} tokens, longest "
            f"{lengths.max():,}; steps of {workload.tokens:,} tokens{default}, sequences up to "
            f"{workload.max_len:,}",
            98,
        ),
        *(line for note in first_proposal.list_short_steps(workload) for line in wrap(note, 98)),
        *_note_lines(source),
        *wrap(first.origin, 98),
        *_lines(args, rows, source),
        *list_mean_tokens(rows, workload.tokens),
        "",
        *(
            explain_degrees(first.proposal.experts, first.proposal.profile.expert_parallel)
            if first.proposal.experts
            else ()
        ),
        *pay_lines(comparison, first.profile),
        *(f"  {line}" for line in left_out),
    ]
    if args.output is not None:
        lines += ["", f"written: {folder if folder is not None else plans}"]
    print("\n".join(lines))
    return 0


def _is_folder(path: Path) -> bool:
    """Whether ``path`` names a folder: one that exists, or a name as ``run`` or ``qwen2.5``."""
    return path.is_dir() or not (path.exists() or path.suffix[1:].isalpha())


def _compare(
    args: argparse.Namespace,
    proposal: Proposal,
    profile: Profile,
    lengths: npt.NDArray[np.integer],
    progress: ProgressBar,
) -> Comparison:
    """Compare the plans of the drawn steps with every system that the profile allows."""
    from seqplan.planner.comparison.compare import Options, compare
    from seqplan.planner.proposal.backends import uses_collectives
    from seqplan.planner.sync.choice import choose_sync

    workload = proposal.workload
    return compare(
        profile,
        workload,
        lengths,
        args.steps or STEPS,
        choose_sync(profile, workload.gpus, collectives=uses_collectives(args.trainer)),
        seed=args.seed,
        options=Options(fast=workload.gpus > LARGE_GPUS or workload.tokens > LARGE_TOKENS),
        execution=args.execution,
        trainer=args.trainer,
        robust=args.robust,
        proposal=proposal,
        progress=progress,
    )


def _fields(rows: list[StepRow], source: _Source) -> dict[str, Any]:
    figures = summary(rows, source.truncated)
    composed = None if source.windows is None else source.windows.report()
    return figures | ({} if composed is None else {"window": asdict(composed)})


def _note_lines(source: _Source) -> list[str]:
    return wrap(f"lengths: {'; '.join(source.notes)}", 98) if source.notes else []


def _lines(args: argparse.Namespace, rows: list[StepRow], source: _Source) -> list[str]:
    from seqplan.planner.exact.close_gap import EXACT_GAP

    lines = summary_lines(rows, source.truncated)
    above = sum(row.plan.gap > EXACT_GAP for row in rows)
    label = f"gap above {percent(EXACT_GAP, 0)}"
    if args.exact:
        lines.append(f"{label}: {count_of(above, 'step')} left with --exact")
    elif above and _supports_exact(args, source.proposal):
        lines.append(f"{label}: {count_of(above, 'step')}; --exact solves those of few sequences")
    if source.windows is not None:
        lines += window_lines(args.window, source.windows.report(), source.steps)
    return lines


def _source_of_proposal(args: argparse.Namespace, proposal: Proposal) -> _Source:
    if has_batches(Path(args.data)):
        drawing = {name: getattr(args, name) for name in ("tokens", "steps", "tokenizer")}
        drawing["window"] = args.window > 1
        if given := [name for name, value in drawing.items() if value]:
            raise ValueError(
                f"--{given[0]} is for lengths: {args.data} has batches, which are drawn already. "
                f"Leave --{given[0]} out"
            )
        batches = list(read_batches(Path(args.data), proposal.workload.max_len))
        return _Source(proposal, batches, len(batches), 0)
    return _draw(args, proposal, _read_lengths(args))


def _read_lengths(args: argparse.Namespace) -> Lengths:
    return read_lengths([args.data], SourceOptions(tokenizer=args.tokenizer))


def _draw(args: argparse.Namespace, proposal: Proposal, lengths: Lengths) -> _Source:
    """Draw steps from the data set, by windows if requested."""
    steps, workload = args.steps or STEPS, proposal.workload
    notes = lengths.sources[0].notes
    sampler = Sampler(lengths.values, args.tokens or workload.tokens, workload.max_len, args.seed)
    windows, drawn = None, sampler.batches(steps)
    if args.window > 1:
        costs = sequence_costs(_classes(proposal), sampler.lengths, workload.gpus)
        windows = WindowSampler(sampler, args.window, costs, args.seed)
        drawn = windows.batches(steps)
    return _Source(proposal, drawn, steps, sampler.truncated, windows, notes)


def _classes(proposal: Proposal) -> list[PipelineClass]:
    """The pipelines that steps may use: of the layout that the proposal chose, or all."""
    models = proposal.workload.models(proposal.profile)
    if proposal.layouts is not None and proposal.layouts.chosen is not None:
        layout = parse_layout(proposal.layouts.chosen)
        models = {s: m for s, m in models.items() if (s.tp, s.pp) == layout}
    return [PipelineClass.from_model(model, 1) for model in drop_dominated(models).values()]
