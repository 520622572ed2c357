"""``seqplan profile``: measure a model on this device and fit its cost model."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.options import add_cluster, add_model, positive, sizes_of
from seqplan.api.cli.output_file import check_output
from seqplan.api.cli.profile_derived import completed, estimated, write_derived
from seqplan.api.cli.terminal import ProgressBar, percent, table
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.scheme import Scheme
from seqplan.profiler.fit.pooling import merged
from seqplan.profiler.fit.samples import MeasuredOn, Sample
from seqplan.profiler.measure.design import FIT_POINTS, design
from seqplan.profiler.model_sizes import ModelShape
from seqplan.profiler.profile import Profile
from seqplan.profiler.scheme_rules import scheme_problem

if TYPE_CHECKING:
    from seqplan.profiler.fit.latency_fit import Errors, Fit
    from seqplan.profiler.fit.measured_profile import MemoryFit

GPUS_PER_NODE = 8
"""Where nothing is said."""

_DESCRIPTION = """\
Measure forward and backward of real layers on this device, fit T(l) = a·l² + b·l + c and the memory
of each scheme, and say how far the fit is from lengths and packings that it has not seen. Alone it
measures schemes of one rank; under torchrun those of several: tensor, pipeline, Ulysses and ring
parallel, all ranks busy with as many pipelines of a scheme as there is room for. An interrupted run
goes on from its samples. Without the devices, --estimate derives a profile from data sheets, and
--complete adds to a measured profile the schemes and cluster sizes that were never run.
"""

_EXAMPLES = """\
examples:
  seqplan profile --model small --device cpu --lengths 64..4096 -o profile.json
  torchrun --nproc-per-node 8 -m seqplan.api.cli profile --model llama3-8b --device cuda \\
    --schemes u1,u2,u4,u8,u4.r2,tp2,tp4,tp8,tp2.pp2 --lengths 256..131072 -o profile.json
  seqplan profile --merge a.samples.jsonl b.samples.jsonl --capacity-gib 80 -o profile.json
  seqplan profile --estimate --model llama3-8b --hardware h100-80gb --nodes 4 -o profile.json
  seqplan profile --complete measured.json --hardware h100-80gb --nodes 4 -o profile.json
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the verb; the parsed arguments carry ``run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile",
        help="measure a model on this device and fit its cost model",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser, required=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float64"), help="default by device"
    )
    parser.add_argument(
        "--schemes",
        metavar="LIST",
        help="as u1,u2,u2.r2,tp2,tp2.pp2; default u1, derived: powers of two",
    )
    parser.add_argument("--lengths", metavar="FROM..TO", default="64..4096", help="tokens")
    parser.add_argument("--points", metavar="N", type=positive, default=FIT_POINTS)
    parser.add_argument(
        "--measured-layers", metavar="K", type=positive, default=2, help="layers that are run"
    )
    parser.add_argument(
        "--repeats", metavar="N", type=positive, default=25, help="of a point, at most; default 25"
    )
    parser.add_argument("--checkpointing", choices=("none", "mlp", "full"), default="none")
    add_cluster(parser, required=False)
    parser.add_argument("--zero", type=int, choices=(1, 2, 3), default=1, help="with --estimate")
    parser.add_argument(
        "--capacity-gib", metavar="GIB", type=float, help="memory of a rank; default the device's"
    )
    parser.add_argument("--name", help="of the profile; default by model and device")
    parser.add_argument("--samples", metavar="FILE", type=Path, help="default OUTPUT.samples.jsonl")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--estimate", action="store_true", help="derive all, measure nothing")
    instead.add_argument("--complete", metavar="PROFILE", help="add derived schemes to a profile")
    instead.add_argument(
        "--merge", metavar="FILE", type=Path, nargs="+", help="fit these samples, measure nothing"
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="curves, samples and residuals as an HTML page"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print the profile")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """The verb. ``ValueError`` for what cannot be measured, ``SampleError`` for bad samples."""
    check_output(args.output, *(args.merge or ()))
    if args.estimate or args.complete:
        if args.plot is not None:
            raise ValueError("--plot: a derived profile has no samples to show")
        check_output(args.output, args.complete)
        write_derived(args, estimated(args) if args.estimate else completed(args))
        return 0
    check_output(args.plot, args.output, *(args.merge or ()))
    if args.merge:
        measured_on, samples = merged(args.merge)
        written(args, measured_on, samples, args.capacity_gib)
        return 0
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    sizes = sizes_of(args)
    shortest, longest = _range(args.lengths)
    points = design(shortest, longest, points=args.points)
    schemes = _schemes(args, sizes)

    # From here on torch is needed.
    import torch

    from seqplan.profiler.measure.device import capacity_bytes, context_bytes
    from seqplan.profiler.measure.run import Task, measure, start_ranks
    from seqplan.runtime.training.model import ModelConfig

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no CUDA device is there; use --device cpu")
    rank, world_size = start_ranks(args.device)
    fitting = tuple(scheme for scheme in schemes if scheme.gpus <= world_size)
    for scheme in schemes:
        if scheme not in fitting and rank == 0:
            print(
                f"{scheme} needs {scheme.gpus} ranks, there are {world_size}: left out "
                "(start with torchrun)",
                file=sys.stderr,
            )
    if not fitting:
        raise ValueError(f"--schemes {args.schemes}: none runs on {world_size} ranks")
    task = Task(
        config=ModelConfig(**sizes, checkpointing=args.checkpointing),
        layers=min(args.measured_layers, sizes["layers"]),
        device=args.device,
        dtype=args.dtype or ("float32" if args.device == "cpu" else "bfloat16"),
        schemes=fitting,
        points=tuple(points),
        repeats=args.repeats,
    )
    path = args.samples or args.output.with_suffix(".samples.jsonl")
    with ProgressBar(sys.stderr) as progress:

        def report(done: int, of: int, left_s: float, sample: Sample) -> None:
            progress(f"{sample.scheme}, {sample.tokens:,} tokens; {left_s:.0f} s left", done, of)

        def complain(text: str) -> None:
            print(f"\n{text}", file=sys.stderr, flush=True)

        measured_on, samples = measure(task, path, rank, world_size, report, complain)
    if rank == 0:
        device = torch.device(args.device)
        shared = 1 if args.device == "cuda" else world_size
        gib = args.capacity_gib or capacity_bytes(device) / shared / 2**30
        written(args, measured_on, samples, gib, context_bytes(device), world_size)
    if world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return 0


def written(
    args: argparse.Namespace,
    measured_on: MeasuredOn,
    samples: Any,
    capacity_gib: float | None,
    context: int = 0,
    ranks: int = 1,
) -> None:
    """Fit, write the profile and print what is known of it; ``context``: bytes in other use."""
    from seqplan.profiler.fit.measured_profile import (
        Hardware,
        fit_memory,
        fit_schemes,
        profile_document,
        unfitted,
    )

    if capacity_gib is None:
        raise ValueError(
            "--merge wants --capacity-gib: samples do not say how much memory there is"
        )
    for problem in unfitted(samples).values():
        print(f"{problem}: left out", file=sys.stderr)
    gpu = measured_on.device.split(",")[0]
    name = args.name or f"{args.model or 'model'}-{gpu}".lower().replace(" ", "-")
    gpus_per_node = args.gpus_per_node or GPUS_PER_NODE
    hardware = Hardware(measured_on.device, gpus_per_node, capacity_gib * 2**30, float(context))
    today = datetime.now(UTC).date().isoformat()
    command = shlex.join(["seqplan", *sys.argv[1:]])
    where = measured_on.device if ranks == 1 else f"{measured_on.device}, {ranks} ranks"
    document = profile_document(
        measured_on,
        samples,
        hardware,
        name=name,
        source=f"measured on {where}, {measured_on.dtype}, {today}: {command}",
    )
    Profile.from_document(document, str(args.output))
    with atomic_write(args.output, "w") as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if args.plot is not None:
        from seqplan.api.report.fit_page import render_fits

        fits = fit_schemes(measured_on, samples)
        page = render_fits(name, document["source"], measured_on.sizes()["layers"], samples, fits)
        with atomic_write(args.plot, "w") as file:
            file.write(page)
    if args.json:
        print(json.dumps(document, ensure_ascii=False))
        return
    print("\n".join(fit_lines(fit_schemes(measured_on, samples), fit_memory(measured_on, samples))))
    print(f"\n{args.output}: profile {name}")


def fit_lines(fits: dict[Scheme, Fit], memory: MemoryFit) -> list[str]:
    """The fits of all schemes as a table, the reasons of those that are suspect, and notes."""
    header = ("scheme", "a ms/token²", "b ms/token", "c ms", "UtilLen", "in-sample", "held out")
    rows = [
        (
            str(scheme),
            f"{fit.latency.a:.3g}",
            f"{fit.latency.b:.3g}",
            f"{fit.latency.c:.3g}",
            str(fit.latency.util_len()),
            _errors(fit.in_sample),
            _errors(fit.held_out),
            _errors(fit.packed),
            fit.verdict,
        )
        for scheme, fit in fits.items()
    ]
    lines = table((*header, "packed", "verdict"), rows)
    lines.append("errors: median / p90, relative")
    lines += [
        f"{scheme}: {each}" for scheme, fit in fits.items() for each in (*fit.reasons, *fit.notes)
    ]
    counted = "peak of the allocator" if memory.of_allocator else "kept by autograd"
    for tp, per_token in memory.bytes_per_token.items():
        lines.append(f"memory: {per_token:,.0f} bytes a token at tp {tp}, {counted}")
    lines.append(f"memory error: {_errors(memory.errors)}")
    return lines


def _errors(errors: Errors) -> str:
    if errors.median is None or errors.p90 is None:
        return "–"
    return f"{percent(errors.median)} / {percent(errors.p90)}"


def _range(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not dots or not first.strip().isdigit() or not last.strip().isdigit():
        raise ValueError(f"--lengths {text!r}: wants FROM..TO in tokens, as 64..4096")
    return int(first), int(last)


def _schemes(args: argparse.Namespace, sizes: dict[str, int]) -> list[Scheme]:
    """Those that can be; the others are named with their reason and left out."""
    shape = ModelShape(**sizes)
    found = []
    for text in (args.schemes or "u1").split(","):
        scheme = Scheme.parse(text)
        problem = scheme_problem(scheme, shape, gpus_per_node=args.gpus_per_node or GPUS_PER_NODE)
        if problem is not None:
            if os.environ.get("RANK", "0") == "0":  # torchrun's; one rank speaks for all
                print(f"{scheme}: {problem}: left out", file=sys.stderr)
        elif scheme not in found:
            found.append(scheme)
    if not found:
        raise ValueError(f"--schemes {args.schemes}: none can be measured")
    return found
