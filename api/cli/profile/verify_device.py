"""``seqplan profile verify``: check the basis of profiles and training on this device."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.extras import require_torch
from seqplan.api.cli.framework.options import above_zero, add_option
from seqplan.api.cli.framework.output import check_output, table
from seqplan.plans.format.atomic_file import write_text
from seqplan.plans.percent import percent

if TYPE_CHECKING:
    from seqplan.profiler.verify.results import CheckResult, Figure
    from seqplan.profiler.verify.settings import VerifySettings

MINUTES, QUICK_SECONDS = 10.0, 20.0

CHECKS = {
    "attention": "kernels and rings against fp64, forward and backward",
    "rates": "attention, products and memory, sustained, and the analytic model's values",
    "profile": "a fit against lengths and packings held out; few layers against more",
    "memory": "bytes predicted from small micro-batches against larger ones",
    "step": "a training step's times against the wall's",
    "ranks": "attention over all ranks of torchrun against fp64; that alone runs there",
}
"""Checks by name."""

DESCRIPTION = """\
Check on this device, in at most ten minutes, the basis of profiles and training. Every result is
printed with its limit; a missed one is named, and the exit code is 1. Checks:
""" + "\n".join(f"  {name:<10} {description}" for name, description in CHECKS.items())

EXAMPLES = """\
examples:
  seqplan profile verify --device cuda -o verified.json
  seqplan profile verify --checks attention --minutes 2
  torchrun --nproc-per-node 8 -m seqplan.api.cli profile verify --device cuda
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    add("--checks LIST", default=",".join(CHECKS), help="default all: %(default)s")
    add("--kernel NAME", help="of attention; default the first that supports a call")
    add(
        "--minutes M",
        type=above_zero,
        default=MINUTES,
        help="that all checks together take about, at most; default 10",
    )
    add("--quick", help="small sizes, for seconds: times are not evaluated")
    add("-o --output FILE", help="every figure, as JSON")
    add("--json", help="print that instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the command: 0 if no limit is missed, else 1. ``ValueError`` on bad input."""
    names = _names(args.checks)
    check_output(args.output)
    require_torch("profile verify")
    import torch

    from seqplan.profiler.measure.device import capacity_bytes, device_name
    from seqplan.profiler.measure.run import start_ranks
    from seqplan.profiler.verify.rates_check import find_data_sheet
    from seqplan.profiler.verify.settings import VerifySettings
    from seqplan.profiler.verify.verification import verification_document, verify
    from seqplan.runtime.communicators import Communicators
    from seqplan.runtime.sequence_parallel.kernels import find_kernel

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is there; use --device cpu")
    seconds = QUICK_SECONDS if args.quick else 60 * min(args.minutes, MINUTES)
    device = torch.device(args.device)
    hardware = None
    if args.device == "cuda":
        hardware = find_data_sheet(device_name(device), capacity_bytes(device))
    rank, world_size = start_ranks(args.device)
    groups = Communicators.create() if world_size > 1 else None
    if args.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    kernel = None if args.kernel is None else find_kernel(args.kernel)
    settings = VerifySettings(
        device, seconds, args.quick, hardware, rank, world_size, groups, kernel
    )
    settings.choose_model_kernel()  # or an error before anything runs

    def report(name: str) -> None:
        if rank == 0:
            print(f"{name}: {CHECKS[name]}", file=sys.stderr, flush=True)

    results = verify(settings, names, report)
    if world_size > 1:
        torch.distributed.barrier(group=groups.control if groups else None)
        torch.distributed.destroy_process_group()
    command = shlex.join(["seqplan", *sys.argv[1:]])
    document = verification_document(settings, results, command)
    if rank == 0:
        _write(args, settings, document, results)
    return 1 if document["missed"] else 0


def _write(
    args: argparse.Namespace,
    settings: VerifySettings,
    document: dict[str, Any],
    results: Sequence[CheckResult],
) -> None:
    """Write the document and print it, or its tables."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    if args.output is not None:
        write_text(args.output, text + "\n")
    print(text if args.json else "\n".join(_lines(settings, document, results)))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CHECKS:
            raise ValueError(
                f"--checks {text}: {name!r} is no check; there are {', '.join(CHECKS)}"
            )
    return names


def _lines(
    settings: VerifySettings, document: dict[str, Any], results: Sequence[CheckResult]
) -> list[str]:
    """Tables for people: of each row of figures the one nearest to its limit, and every miss."""
    from seqplan.profiler.verify.results import by_group

    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [f"{document['device']}; {versions}"]
    for result in results:
        lines += ["", f"{result.name}: {CHECKS[result.name]} ({result.seconds:.0f} s)"]
        if result.skipped is not None:
            lines.append(f"  not run: {result.skipped}")
            continue
        rows = [_cells(group, figures) for group, figures in by_group(result.figures).items()]
        lines += [f"  {line}" for line in table(_HEADER, rows, left=2)]
        lines += [f"  {note}" for note in result.notes]
    misses = [(result.name, figure) for result in results for figure in result.misses]
    lines += ["", "no limit was missed" if not misses else f"missed: {len(misses)}"]
    lines += [
        f"  {name}: {figure.group}: {figure.name}: {_value(figure, figure.value)}, {_limit(figure)}"
        for name, figure in misses
    ]
    if settings.quick:
        lines.append("quick: sizes are too small to evaluate times")
    return lines


_HEADER = ("figures", "nearest to its limit", "of", "value", "limit", "model")


def _cells(group: str, figures: Sequence[Figure]) -> tuple[str, ...]:
    worst = max(figures, key=lambda figure: figure.strain)
    return (
        group,
        worst.name,
        str(len(figures)),
        _value(worst, worst.value),
        _limit(worst),
        "–" if worst.assumed is None else _value(worst, worst.assumed),
    )


def _limit(figure: Figure) -> str:
    if figure.least is not None and figure.most is not None:
        return f"{_value(figure, figure.least)} to {_value(figure, figure.most)}"
    if figure.most is not None:
        return f"at most {_value(figure, figure.most)}"
    return "none" if figure.least is None else f"at least {_value(figure, figure.least)}"


def _value(figure: Figure, value: float) -> str:
    if figure.unit == "%":
        return percent(value)
    return f"{value:,.3g} {figure.unit}".rstrip()
