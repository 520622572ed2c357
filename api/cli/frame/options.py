"""Options that verbs share, and the types that argparse converts their values with.

What an option needs of the planner or the profiler is imported where it is added: a verb loads what
it uses, and no more.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqplan.profiler.analytic.hardware import ClusterHardware
    from seqplan.profiler.model_sizes import ModelSizes
    from seqplan.profiler.profile import Profile


def positive(text: str) -> int:
    """An argparse type: an integer of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"wants an integer of 1 or more, not {text!r}")
    return value


def natural(text: str) -> int:
    """An argparse type: an integer of 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"wants an integer of 0 or more, not {text!r}")
    return value


def check_port(port: int) -> None:
    """``ValueError`` for what is no TCP port."""
    if port > 65535:
        raise ValueError(f"--port {port}: wants 0 to 65535")


def add_planning_input(parser: argparse.ArgumentParser) -> None:
    """Add what is planned for: profile, GPUs, lengths, longest sequence and tokens of a step."""
    from seqplan.planner.cluster import TOKENS_PER_GPU

    add = parser.add_argument
    add("--profile", metavar="NAME|FILE", required=True, help="seqplan profiles")
    add("--gpus", metavar="N", type=positive, required=True)
    add("--lengths", metavar="FILE", required=True, help="lengths.npy, or any source of lengths")
    add("--max-len", metavar="L", type=positive, required=True, help="truncate sequences to this")
    add(
        "--tokens",
        metavar="T",
        type=positive,
        help=f"tokens of a step; default {TOKENS_PER_GPU} per GPU",
    )


def add_usable_schemes(parser: argparse.ArgumentParser) -> None:
    """Add what decides which schemes may be used: shards, flags, origin and layout."""
    parser.add_argument(
        "--optimizer-shards",
        metavar="D",
        type=positive,
        help="ranks over which optimizer states are sharded; default all",
    )
    parser.add_argument(
        "--include-flagged", action="store_true", help="also use coefficients marked as unsound"
    )
    parser.add_argument(
        "--schemes",
        choices=("all", "measured"),
        default="all",
        help="measured: leave schemes out whose coefficients are derived; default all",
    )
    parser.add_argument(
        "--layout", metavar="LAYOUT", type=layout, help="only schemes of one tp and pp, as tp4.pp2"
    )


def layout(text: str) -> tuple[int, int]:
    """An argparse type: the tp and pp of a layout, written like a scheme."""
    from seqplan.planner.exchange.times import parse_layout

    try:
        return parse_layout(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def usable_profile(args: argparse.Namespace) -> Profile:
    """The profile that was named, with the schemes that may be used; ``ProfileError`` for none."""
    from seqplan.profiler.shipped.catalogue import find_profile

    profile = find_profile(args.profile)
    return profile.restricted(measured=args.schemes == "measured", layout=args.layout)


def add_cluster(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--hardware``, ``--nodes``, ``--gpus-per-node`` and the bandwidths."""
    from seqplan.profiler.analytic.hardware import DEVICES

    group = parser.add_argument_group("cluster")
    group.add_argument("--hardware", metavar="NAME", required=required, help=", ".join(DEVICES))
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


def cluster_of(args: argparse.Namespace) -> ClusterHardware:
    """The cluster that was asked for; ``ValueError`` for unknown hardware or a bandwidth of 0."""
    from seqplan.profiler.analytic.hardware import DEVICES, ClusterHardware

    if args.hardware not in DEVICES:
        raise ValueError(f"--hardware {args.hardware!r}: wants one of {', '.join(DEVICES)}")
    hardware = DEVICES[args.hardware]
    if args.intra_gb_s is not None:
        hardware = replace(hardware, intra_gb_s=args.intra_gb_s)
    if args.inter_gb_s is not None:
        hardware = replace(hardware, inter_gb_s=args.inter_gb_s)
    return ClusterHardware(hardware, args.nodes, args.gpus_per_node or hardware.gpus_per_node)


def number(text: str) -> float:
    """An argparse type: a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"wants a number of 0 or more, not {text!r}")
    return value


def above_zero(text: str) -> float:
    """An argparse type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"wants a number above 0, not {text!r}")
    return value


def exchange_times(text: str) -> tuple[float, float]:
    """An argparse type: one time (ms) for all replicas, or two: equal ones, different ones."""
    parts = [number(part) for part in text.split(",")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"wants one time or two, not {text!r}")
    return parts[0], parts[-1]


def add_exchange(parser: argparse.ArgumentParser) -> None:
    """Add the exchange's times: ``--exchange-ms`` and ``--overlap``."""
    parser.add_argument(
        "--exchange-ms",
        metavar="E[,H]",
        type=exchange_times,
        help="exchange of parameters and gradients: between equal replicas, and between different "
        "layouts; default: derived for each layout from its bytes and the cluster's links",
    )
    parser.add_argument(
        "--overlap",
        metavar="SHARE",
        type=number,
        default=0.0,
        help="share of the exchange hidden by propagation; default 0",
    )


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add the option to a verb's parser."""
    from seqplan.planner.workers.executor import EXECUTORS

    parser.add_argument(
        "--executor",
        choices=EXECUTORS,
        default=EXECUTORS[0],
        help="workers are processes here (default), or actors of the Ray cluster at RAY_ADDRESS",
    )


def add_model(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--model`` and a flag for every size."""
    from seqplan.profiler.model_sizes import MODELS, SIZES

    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        required=required,
        help=f"{', '.join(MODELS)}, or a config.json",
    )
    for size in SIZES:
        group.add_argument(f"--{size.replace('_', '-')}", metavar="N", type=positive)
    group.add_argument(
        "--head-dim", metavar="N", type=positive, help="of one head; default hidden / heads"
    )
    group.add_argument(
        "--tied",
        action=argparse.BooleanOptionalAction,
        help="the output head's weight is the embedding's; default by model, or not",
    )


def sizes_of(args: argparse.Namespace, longest: int | None = None) -> ModelSizes:
    """The sizes that were asked for, single flags over those of the named model.

    ``longest``: tokens of the longest sequence that is meant, by default the longest that the model
    is made for. ``ValueError`` for an unknown name, a file that is no config or whose model is not
    modelled, a size that is missing, and sizes that do not fit together.
    """
    from seqplan.profiler.model_sizes import SIZES, ModelSizes

    sizes = stated_sizes(args, longest)
    if missing := [size for size in SIZES if size not in sizes]:
        raise ValueError(
            f"model: {', '.join(missing)} not given; name a --model or give every size"
        )
    return ModelSizes.of(sizes)


def stated_sizes(args: argparse.Namespace, longest: int | None = None) -> dict[str, int]:
    """The sizes that were asked for, as far as they were; errors as ``sizes_of``."""
    from seqplan.profiler.model_sizes import SIZES

    sizes = dict(_named(args.model, longest)) if args.model else {}
    for size in (*SIZES, "head_dim", "tied"):
        if (value := getattr(args, size)) is not None:
            sizes[size] = value
    return sizes


def _named(name: str, longest: int | None) -> dict[str, int]:
    from seqplan.profiler.model_config import read_model_config
    from seqplan.profiler.model_sizes import MODELS

    if name in MODELS:
        return MODELS[name]
    if not name.endswith(".json"):
        raise ValueError(
            f"--model {name!r}: neither a known model ({', '.join(MODELS)}) nor a config.json"
        )
    return read_model_config(Path(name), longest)
