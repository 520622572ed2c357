"""Options that commands share, and the types that argparse converts their values with.

An option imports its part of the planner or the profiler on demand, so that a command loads what
it uses, and no more.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile


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
    """Raise ``ValueError`` unless ``port`` is a TCP port."""
    if port > 65535:
        raise ValueError(f"--port {port}: wants 0 to 65535")


def add_planning_input(parser: argparse.ArgumentParser) -> None:
    """Add the planning problem: profile, GPUs, lengths, longest sequence and tokens of a step."""
    from seqplan.planner.cluster import TOKENS_PER_GPU

    add = parser.add_argument
    add("--profile", metavar="NAME|FILE", required=True, help="seqplan profile list")
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
    add_trainer(parser, "only what this trainer runs: its schemes, ZeRO stage and lockstep")
    parser.add_argument(
        "--layout", metavar="LAYOUT", type=layout, help="only schemes of one tp and pp, as tp4.pp2"
    )


def add_trainer(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add ``--trainer``, one of the backends."""
    from seqplan.planner.proposal.backends import BACKENDS

    parser.add_argument("--trainer", choices=tuple(BACKENDS), help=help_text)


def layout(text: str) -> tuple[int, int]:
    """An argparse type: the tp and pp of a layout, written like a scheme."""
    from seqplan.planner.sync.times import parse_layout

    try:
        return parse_layout(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def usable_profile(args: argparse.Namespace) -> Profile:
    """The profile that was named, with the schemes that may be used; ``ProfileError`` for none."""
    from seqplan.costs.shipped.catalogue import find_profile

    profile = find_profile(args.profile)
    if args.trainer is not None:
        from seqplan.planner.proposal.backends import find_backend

        profile = find_backend(args.trainer).usable_profile(profile, args.gpus)
    return profile.restrict(measured=args.schemes == "measured", layout=args.layout)


def runs_in_lockstep(args: argparse.Namespace) -> bool:
    """Return whether ranks run in lockstep: by option, or by the named trainer."""
    from seqplan.planner.proposal.backends import find_backend

    return args.lockstep or (args.trainer is not None and find_backend(args.trainer).lockstep)


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


def sync_times(text: str) -> tuple[float, float]:
    """An argparse type: one time (ms) for all replicas, or two: equal ones, different ones."""
    parts = [number(part) for part in text.split(",")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"wants one time or two, not {text!r}")
    return parts[0], parts[-1]


def add_sync(parser: argparse.ArgumentParser) -> None:
    """Add the sync's times: ``--sync-ms`` and ``--overlap``."""
    parser.add_argument(
        "--sync-ms",
        metavar="E[,H]",
        type=sync_times,
        help="sync of parameters and gradients: between equal replicas, and between different "
        "layouts; default: derived for each layout from its bytes and the cluster's links",
    )
    parser.add_argument(
        "--overlap",
        metavar="SHARE",
        type=number,
        default=0.0,
        help="share of the sync hidden by propagation; default 0",
    )


def add_rounds(
    parser: argparse.ArgumentParser,
    multiple: str = "the rounds of every step are a multiple of M; default 1",
) -> None:
    """Add the options of steps in rounds: ``--lockstep`` and ``--micro-step-multiple``.

    ``multiple``: the help of the second.
    """
    parser.add_argument(
        "--lockstep",
        action="store_true",
        help="all ranks run their k-th micro-batches together, in rounds, each as long as its "
        "slowest group: for trainers on FSDP, and Megatron's dynamic context parallelism",
    )
    parser.add_argument(
        "--micro-step-multiple",
        metavar="M",
        type=positive,
        default=1,
        help=multiple,
    )


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add the option to a command's parser."""
    from seqplan.planner.workers.executor import EXECUTORS

    parser.add_argument(
        "--executor",
        choices=EXECUTORS,
        default=EXECUTORS[0],
        help="workers are processes here (default), or actors of the Ray cluster at RAY_ADDRESS",
    )
