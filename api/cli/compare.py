"""``seqplan compare``: our plans and other systems on the same batches, simulated."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.api.cli.framework import options
from seqplan.api.cli.framework.output import ProgressBar, check_output
from seqplan.api.cli.parts.compare_output import (
    comparison_fields,
    comparison_lines,
    sweep_fields,
    sweep_lines,
)
from seqplan.costs.lengths import read_lengths
from seqplan.costs.profile import Profile
from seqplan.planner.comparison.compare import SYSTEMS, Options, check_systems, compare
from seqplan.planner.comparison.nearest import LEAST_STEPS
from seqplan.planner.comparison.results import Comparison
from seqplan.planner.comparison.sweep import AXES, sweep
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.backends import apply_backend, uses_collectives
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import NO_SYNC, SyncTimes
from seqplan.planner.systems.hotspa import SWITCH_MS
from seqplan.planner.systems.hydraulis import CBC_S
from seqplan.plans.format.atomic_file import write_text

DESCRIPTION = """\
Compare plans with what would run instead: static strategies, and the published systems that the
profile allows. All are simulated on the same batches by the same simulator; nothing is measured.
"""


def _truth(text: str) -> bool:
    """An argparse type: yes or no."""
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"must be yes or no: {text!r}")
    return text == "yes"


_ASSUMPTIONS: dict[str, Callable[[str], Any]] = {
    "optimizer-ms": options.number,
    "switch-ms": options.number,
    "cbc-s": options.number,
    "fast": _truth,
    "search-static": _truth,
}

_CONCERNED = {
    "switch_ms": "hotspa",
    "cbc_s": "hydraulis",
    "fast": "hydraulis",
    "search_static": "megatron",
}
"""Assumption → the system that it is about."""

EXAMPLES = f"""\
example:
  seqplan compare lengths.npy --profile llama-32b-a800-80gb --gpus 64 \\
    --max-len 32768 --tokens 200000 -o report.html
  seqplan compare lengths.npy --profile llama-32b-a800-80gb --gpus 64 \\
    --max-len 32768 --sweep gpus=32,64,128 -o report.html
systems: {", ".join(SYSTEMS)}
assumptions: optimizer-ms=MS (default as measured, published or derived); switch-ms=MS, HotSPa's
  switches of an iteration (default {SWITCH_MS:g}); cbc-s=S, limit of Hydraulis's solver for each
  number of micro-batches (default {CBC_S:g}, as published); fast=yes, Hydraulis's dispatch and
  packing cut short (labeled so), for large clusters; search-static=yes, search the Megatron-like
  configuration even if a published one fits
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(options.add_option, parser)
    options.add_planning_input(parser)
    add(
        "--steps K",
        default=LEAST_STEPS,
        help=f"default {LEAST_STEPS}; fewer give no interval of the speed-up",
    )
    add("--seed S", default=0)
    add(
        "--systems A,B", type=_systems, default=SYSTEMS, help="systems to compare with; default all"
    )
    add(
        "--sweep AXIS=V,V,…",
        type=_sweeps,
        default=(),
        help="repeat the comparison for each value of gpus, max-len or tokens; several axes in one "
        "text, with spaces between them",
    )
    options.add_usable_schemes(parser)
    options.add_sync(parser)
    options.add_execution(
        parser,
        "our micro-steps of every step, and those of static strategies with our balancing, are a "
        "multiple of M, other systems' are as many as their rules make; default 1",
    )
    add(
        "--assume NAME=VALUE …",
        type=_assumptions,
        default={},
        help="change assumptions about compared systems (below), in one text",
    )
    options.add_robust(parser)
    add("-o --output FILE", help="write report.html")
    add("--json", help="all figures as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` on bad input, ``Infeasible`` if nothing can run the data."""
    profile = options.usable_profile(args)
    check_output(args.output, args.data, args.profile)
    _sync(args, profile)  # so that bad options fail before the data is read
    _options(args)
    PlanningOptions(robust=args.robust)
    apply_backend(profile, args.gpus, args.execution, args.micro_step_multiple, args.trainer)
    lengths = read_lengths([args.data]).values
    with ProgressBar() as progress:
        comparison = _compare(args, profile, lengths, progress)
        known = {"gpus": args.gpus, "max-len": args.max_len, "tokens": comparison.tokens}

        def compare_at(axis: str, value: int) -> Comparison:
            if value == known[axis]:
                return comparison
            changed = argparse.Namespace(**{**vars(args), axis.replace("-", "_"): value})
            return _compare(changed, profile, lengths, progress)

        sweeps = [sweep(axis, values, partial(compare_at, axis)) for axis, values in args.sweep]
    if args.output is not None:
        from seqplan.api.report import render

        write_text(args.output, render(comparison, profile, sweeps))
    if args.json:
        fields = comparison_fields(comparison) | {
            "sweeps": [sweep_fields(swept) for swept in sweeps]
        }
        print(json.dumps(fields, ensure_ascii=False))
    else:
        lines = comparison_lines(comparison)
        for swept in sweeps:
            lines += ["", *sweep_lines(swept)]
        print("\n".join(lines))
        if args.output is not None:
            print(f"written: {args.output}")
    return 0


def _options(args: argparse.Namespace) -> Options:
    changed = {name: value for name, value in args.assume.items() if name != "optimizer_ms"}
    for name in changed:
        if (system := _CONCERNED[name]) not in args.systems:
            raise ValueError(
                f"--assume {name.replace('_', '-')}: {system} is not among --systems. Add it, or "
                "leave the assumption out"
            )
    return Options(args.systems, **changed)


def _sync(args: argparse.Namespace, profile: Profile) -> SyncTimes:
    if args.sync.times is None:
        if "optimizer_ms" in args.assume:
            raise ValueError("--assume optimizer-ms: --sync none counts none. Leave one out")
        return NO_SYNC
    return choose_sync(
        profile,
        args.gpus,
        sync_ms=None if args.sync.times == "derived" else args.sync.times,
        overlap=args.sync.overlap,
        optimizer_ms=args.assume.get("optimizer_ms"),
        collectives=uses_collectives(args.trainer),
    )


def _compare(
    args: argparse.Namespace,
    profile: Profile,
    lengths: npt.NDArray[np.integer],
    progress: ProgressBar,
) -> Comparison:
    return compare(
        profile,
        options.workload_of(args),
        lengths,
        args.steps,
        _sync(args, profile),
        seed=args.seed,
        options=_options(args),
        execution=args.execution,
        micro_step_multiple=args.micro_step_multiple,
        trainer=args.trainer,
        robust=args.robust,
        progress=progress,
    )


@options.as_argument
def _systems(text: str) -> tuple[str, ...]:
    """An argparse type: names of systems, separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    check_systems(names)
    return names


def _assumptions(text: str) -> dict[str, Any]:
    """An argparse type: assumptions by name, ``switch-ms=1500 megatron=searched``."""
    changed: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in _ASSUMPTIONS:
            raise argparse.ArgumentTypeError(
                f"unknown assumption {name!r}; there are {', '.join(_ASSUMPTIONS)}"
            )
        key = name.replace("-", "_")
        if key in changed:
            raise argparse.ArgumentTypeError(f"has {name} twice")
        changed[key] = _ASSUMPTIONS[name](value)
    return changed


def _sweeps(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """An argparse type: axes with their values, ``gpus=16,32 tokens=100000,200000``."""
    axes: dict[str, tuple[int, ...]] = {}
    for part in text.split():
        axis, sign, values = part.partition("=")
        if axis not in AXES or not sign:
            raise argparse.ArgumentTypeError(
                f"must be AXIS=V,V,… of the axes {', '.join(AXES)}: {part!r}"
            )
        if axis in axes:
            raise argparse.ArgumentTypeError(f"has {axis} twice")
        axes[axis] = tuple(dict.fromkeys(options.positive(value) for value in values.split(",")))
    return tuple(axes.items())
