"""Options that commands share, and the types that argparse converts their values with.

An option imports its part of the planner or the profiler on demand, so that a command loads what
it uses, and no more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from seqplan.costs.lengths import parse_tokenizer
from seqplan.planner.execution import EXECUTIONS
from seqplan.planner.proposal.scheme_filter import SchemeFilter

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile
    from seqplan.planner.workers.executor import Workers


def positive(text: str) -> int:
    """An argparse type: an integer of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of 1 or more: {text!r}")
    return value


def natural(text: str) -> int:
    """An argparse type: an integer of 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be an integer of 0 or more: {text!r}")
    return value


def slow_ranks(text: str) -> tuple[tuple[int, float | None], ...]:
    """An argparse type: ranks and their factors, ``lost`` for None, such as ``13=1.3,20=lost``."""
    pairs: list[tuple[int, float | None]] = []
    for part in text.split(","):
        rank, _, factor = part.partition("=")
        try:
            lost = factor.strip() == "lost"
            pairs.append((natural(rank.strip()), None if lost else float(factor)))
        except (ValueError, argparse.ArgumentTypeError):
            raise argparse.ArgumentTypeError(
                f"must be rank=factor,…, as 13=1.3,20=lost: {text!r}"
            ) from None
    return tuple(pairs)


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add the options of the service's log."""
    parser.add_argument(
        "--log",
        metavar="[json:]LEVEL",
        type=log_settings,
        default=("info", False),
        help="least level that goes to stderr, of debug, info, warning and error; info: also who "
        "began, stopped or deleted something; debug: every request; json: lines of JSON; default "
        "info",
    )


def log_settings(text: str) -> tuple[str, bool]:
    """Read a level and whether lines are JSON."""
    form, _, level = text.rpartition(":")
    if form not in ("", "json") or level not in ("debug", "info", "warning", "error"):
        raise argparse.ArgumentTypeError(
            f"must be debug, info, warning or error, or one of them as json:LEVEL: {text!r}"
        )
    return level, form == "json"


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add the option that counts the tokens of text and conversations."""
    parser.add_argument(
        "--tokenizer",
        metavar="PATH|X",
        type=parse_tokenizer,
        help="of text: tokenizer.json, a tokenizer's folder (for conversations, by its template), "
        "or X bytes per token, about 4 for English",
    )


def check_port(port: int) -> None:
    """Raise ``ValueError`` unless ``port`` is a TCP port."""
    if port > 65535:
        raise ValueError(f"--port must be 0 to 65535: {port}")


def add_planning_input(parser: argparse.ArgumentParser) -> None:
    """Add the planning problem: data, profile, GPUs, longest sequence and tokens of a step."""
    from seqplan.planner.workload import TOKENS_PER_GPU

    add = parser.add_argument
    add("data", metavar="DATA", help="lengths.npy, or any source of lengths")
    add("--profile", metavar="NAME|FILE", required=True, help="seqplan profile list")
    add("--gpus", metavar="N", type=positive, required=True)
    add("--max-len", metavar="L", type=positive, required=True, help="truncate sequences to this")
    add(
        "--tokens",
        metavar="T",
        type=positive,
        help=f"tokens of a step; default {TOKENS_PER_GPU} per GPU",
    )


def add_usable_schemes(parser: argparse.ArgumentParser) -> None:
    """Add what decides which schemes may be used: shards, filters and the trainer."""
    parser.add_argument(
        "--optimizer-shards",
        metavar="D",
        type=positive,
        help="ranks over which optimizer states are sharded; default all",
    )
    parser.add_argument(
        "--schemes",
        metavar="FILTER,…",
        type=scheme_filter,
        default=SchemeFilter(),
        help="measured: only schemes whose coefficients are not derived; flagged: also those "
        "marked as unsound; tp4.pp2: only schemes of this tp and pp; ep8: only entries of this "
        "expert parallelism",
    )
    add_trainer(parser, "only what this trainer runs: its schemes, ZeRO stage and execution")


class _Trainers:
    """Names of ``--trainer``: listed ones, and what installed packages add if another is given."""

    def __iter__(self) -> Iterator[str]:
        from seqplan.planner.proposal.backends import BACKENDS

        return iter(BACKENDS)

    def __contains__(self, name: str) -> bool:
        from seqplan.plans.extensions import list_extensions

        return name in [*self] or name in list_extensions("seqplan.trainers")


def add_trainer(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add ``--trainer``, one of the backends."""
    parser.add_argument("--trainer", choices=_Trainers(), help=help_text)


def scheme_filter(text: str) -> SchemeFilter:
    """An argparse type: filters of schemes, separated by commas."""
    try:
        return SchemeFilter.parse(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def usable_profile(args: argparse.Namespace) -> Profile:
    """The profile that was named, with the schemes that may be used; ``ProfileError`` for none."""
    from seqplan.costs.shipped.catalogue import find_profile

    return filter_schemes(find_profile(args.profile), args)


def filter_schemes(profile: Profile, args: argparse.Namespace) -> Profile:
    """The profile with the schemes that may be used; ``ProfileError`` for none."""
    if args.trainer is not None:
        from seqplan.planner.proposal.backends import find_backend

        profile = find_backend(args.trainer).usable_profile(profile, args.gpus)
    schemes: SchemeFilter = args.schemes
    return schemes.apply(profile)


def number(text: str) -> float:
    """An argparse type: a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more: {text!r}")
    return value


def above_zero(text: str) -> float:
    """An argparse type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0: {text!r}")
    return value


@dataclass(frozen=True)
class SyncOption:
    """``--sync``: times (ms) between equal and different replicas, derived or none; overlap."""

    times: tuple[float, float] | Literal["derived"] | None = "derived"
    overlap: float = 0.0


def sync_option(text: str) -> SyncOption:
    """An argparse type: ``derived``, ``none`` or one or two times (ms), and ``overlap=SHARE``."""
    parts = [part.strip() for part in text.split(",")]
    shares = [part.removeprefix("overlap=") for part in parts if part.startswith("overlap=")]
    named = [part for part in parts if not part.startswith("overlap=")]
    if len(shares) > 1 or len(named) > 2 or (len(named) > 1 and {"derived", "none"} & {*named}):
        raise argparse.ArgumentTypeError(
            f"must be derived, none, MS or MS,MS, and overlap=SHARE: {text!r}"
        )
    overlap = number(shares[0]) if shares else 0.0
    if not named or named == ["derived"]:
        return SyncOption("derived", overlap)
    if named == ["none"]:
        return SyncOption(None, overlap)
    times = [number(part) for part in named]
    return SyncOption((times[0], times[-1]), overlap)


def add_sync(parser: argparse.ArgumentParser) -> None:
    """Add ``--sync``."""
    parser.add_argument(
        "--sync",
        metavar="MS[,MS]",
        type=sync_option,
        default=SyncOption(),
        help="sync of parameters and gradients between equal replicas and between different "
        "layouts, with overlap=SHARE hidden by computation; derived (default): for each layout "
        "from its bytes and the cluster's links; none: choose by forward and backward alone",
    )


def add_execution(
    parser: argparse.ArgumentParser,
    multiple: str = "in lockstep the micro-steps of every step are a multiple of M; default 1",
) -> None:
    """Add ``--execution`` and ``--micro-step-multiple``; ``multiple``: the help of the second."""
    parser.add_argument(
        "--execution",
        choices=EXECUTIONS,
        help="uniform: one scheme on all ranks, the same at every step; static: a strategy for "
        "each step, whose groups stay within it; regroup: groups may also change within a step; "
        "lockstep: all ranks run their k-th micro-batch together, in groups formed for each "
        "micro-step (FSDP, Megatron's dynamic context parallelism); default: what --trainer runs, "
        "lockstep under ZeRO-3, else regroup",
    )
    parser.add_argument(
        "--micro-step-multiple",
        metavar="M",
        type=positive,
        default=1,
        help=multiple,
    )


def add_robust(parser: argparse.ArgumentParser) -> None:
    """Add ``--robust``."""
    parser.add_argument(
        "--robust",
        metavar="SHARE",
        type=number,
        default=0.0,
        help="plans that are at no corner slower than uniform execution if a, b or c of the costs "
        "are off by this share, as 0.1; planning takes about eight times as long; default 0",
    )


def workers_option(text: str) -> Workers:
    """An argparse type: ``W`` processes, or ``ray:W`` actors."""
    from seqplan.planner.workers.executor import Workers

    try:
        return Workers.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("workers ")) from None


def add_workers(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add ``--workers``; ``help_text``: its beginning."""
    parser.add_argument(
        "--workers",
        metavar="W|ray:W",
        type=workers_option,
        default="1",
        help=f"{help_text}; ray:W are actors of the Ray cluster at RAY_ADDRESS; default 1",
    )
