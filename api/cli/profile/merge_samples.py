"""``seqplan profile merge``: a profile of samples that several runs have measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import check_output
from seqplan.api.cli.profile.fitted_profile import (
    MeasuredMode,
    add_fitted_output,
    read_host_memory,
    write_measured,
)
from seqplan.costs.fit.busy import busy
from seqplan.costs.fit.measured_profile import ProfiledDevices
from seqplan.costs.fit.pooling import group_by_mode, merge_runs, merge_sync_samples

DESCRIPTION = """\
Fit a profile to the samples of seqplan profile measure, of one run or of several and of one
recomputation mode or several, and print the error on held-out lengths and packings. Nothing is
measured.
"""

EXAMPLES = """\
example:
  seqplan profile merge a.samples.jsonl b.samples.jsonl --capacity-gib 80 -o profile.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "samples", metavar="samples.jsonl", type=Path, nargs="+")
    add_option(
        parser,
        "--capacity-gib GIB",
        required=True,
        help="memory of a rank, without that of a CUDA context; samples do not contain it",
    )
    add_fitted_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. ``SampleError`` for bad samples."""
    check_output(args.output, *args.samples)
    check_output(args.plot, args.output, *args.samples)
    modes = [
        MeasuredMode(*merge_runs(files), merge_sync_samples(files))
        for files in group_by_mode(args.samples)
    ]
    for mode in modes:
        if (reason := busy(mode.samples)) is not None:
            print(f"seqplan: {reason}: the samples are fitted as they are", file=sys.stderr)
    device = modes[0].measured_on.device
    devices = ProfiledDevices(
        device,
        args.gpus_per_node,
        args.capacity_gib * 2**30,
        host_memory_bytes=read_host_memory(args, [mode.measured_on.recompute for mode in modes]),
    )
    write_measured(args, modes, devices, model="model")
    return 0
