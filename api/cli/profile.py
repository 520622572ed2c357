"""``seqplan profile``: measure a model on this device and fit its cost model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from seqplan.api.cli.framework.model_options import (
    add_cluster,
    add_model,
    add_training,
    refuse_devices,
    refuse_training,
)
from seqplan.api.cli.framework.options import above_zero, positive
from seqplan.api.cli.framework.output_file import check_output
from seqplan.api.cli.parts.profile_derived import (
    complete_from_profile,
    derive_every_scheme,
    write_derived,
)
from seqplan.api.cli.parts.profile_measured import measure_and_write, write_measured
from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.pooling import merge_runs, merge_sync_samples
from seqplan.profiler.measure.design import FIT_POINTS

_DESCRIPTION = """\
Measure forward and backward of real layers on this device, fit T(l) = a·l² + b·l + c and the memory
of each scheme, and print the error on held-out lengths and packings. Alone it
measures schemes of one rank; under torchrun those of several: tensor, pipeline, Ulysses and ring
parallel, all ranks busy with as many pipelines of a scheme as there is room for. An interrupted run
goes on from its samples. Fails if the machine is too busy for reliable timing (exit code 1).
Without the devices, --estimate derives a profile from data sheets, and
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
    """Register the command; the parsed arguments carry ``run``."""
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
    parser.add_argument(
        "--checkpointing", choices=("none", "selective", "mlp", "full"), default="none"
    )
    add_cluster(parser, required=False)
    parser.add_argument("--zero", type=int, choices=(1, 2, 3), default=1, help="with --estimate")
    add_training(parser, schedule=False)
    parser.add_argument(
        "--capacity-gib",
        metavar="GIB",
        type=above_zero,
        help="memory of a rank; default the device's",
    )
    parser.add_argument(
        "--even-if-busy",
        action="store_true",
        help="write a profile even where the machine had too much else to do",
    )
    parser.add_argument("--name", help="of the profile; default by model and device")
    parser.add_argument("--samples", metavar="FILE", type=Path, help="default OUTPUT.samples.jsonl")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--estimate", action="store_true", help="derive all, measure nothing")
    instead.add_argument("--complete", metavar="NAME|FILE", help="add derived schemes to a profile")
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
    """Run the command. ``ValueError`` for bad input, ``SampleError`` for bad samples."""
    check_output(args.output, *(args.merge or ()))
    if args.estimate or args.complete:
        if args.plot is not None:
            raise ValueError("--plot: a derived profile has no samples to show")
        check_output(args.output, args.complete)
        if args.complete:
            refuse_training(args, "schemes are derived as the others of the profile were measured")
        write_derived(
            args, derive_every_scheme(args) if args.estimate else complete_from_profile(args)
        )
        return 0
    check_output(args.plot, args.output, *(args.merge or ()))
    refuse_training(args, "layers are measured as this runtime runs them")
    refuse_devices(args, "the devices are those that measure")
    if args.merge:
        measured_on, samples = merge_runs(args.merge)
        if not args.even_if_busy and (reason := busy(samples)) is not None:
            print(f"seqplan: {reason}: the samples are fitted as they are", file=sys.stderr)
        if args.capacity_gib is None:
            raise ValueError(
                "--merge requires --capacity-gib: samples do not contain the memory size"
            )
        write_measured(
            args,
            measured_on,
            samples,
            capacity_gib=args.capacity_gib,
            syncs=merge_sync_samples(args.merge),
        )
        return 0
    return measure_and_write(args)
