"""``--hardware``, ``--nodes`` and what they say of links: a cluster on the command line."""

from __future__ import annotations

import argparse
from dataclasses import replace

from seqplan.api.cli.exchange_options import number
from seqplan.api.cli.terminal import positive
from seqplan.profiler.analytic.hardware import PRESETS, Cluster


def add_cluster(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--hardware``, ``--nodes``, ``--gpus-per-node`` and the bandwidths."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--hardware", metavar="NAME", required=required, help=", ".join(PRESETS))
    group.add_argument("--nodes", metavar="N", type=positive, default=1, help="default 1")
    group.add_argument("--gpus-per-node", metavar="N", type=positive, help="default 8")
    group.add_argument(
        "--intra-gb-s",
        metavar="GB/S",
        type=number,
        help="link of a GPU to others of its node, one way; default by hardware",
    )
    group.add_argument(
        "--inter-gb-s",
        metavar="GB/S",
        type=number,
        help="a GPU's share of the links to other nodes, one way; default by hardware",
    )


def cluster_of(args: argparse.Namespace) -> Cluster:
    """The cluster that was asked for; ``ValueError`` for unknown hardware or a bandwidth of 0."""
    if args.hardware not in PRESETS:
        raise ValueError(f"--hardware {args.hardware!r}: wants one of {', '.join(PRESETS)}")
    hardware = PRESETS[args.hardware]
    if args.intra_gb_s is not None:
        hardware = replace(hardware, intra_gb_s=args.intra_gb_s)
    if args.inter_gb_s is not None:
        hardware = replace(hardware, inter_gb_s=args.inter_gb_s)
    return Cluster(hardware, args.nodes, args.gpus_per_node or hardware.gpus_per_node)
