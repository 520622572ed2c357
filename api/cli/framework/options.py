"""Options that commands share, and the types that argparse converts their values with.

An option imports its part of the planner or the profiler on demand, so that a command loads what
it uses, and no more.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile
    from seqplan.planner.proposal.scheme_filter import SchemeFilter
    from seqplan.planner.workers.executor import Workers
    from seqplan.planner.workload import Workload


T = TypeVar("T")
Number = TypeVar("Number", int, float)


def as_argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argparse type of a function whose ``ValueError`` is the message."""

    @wraps(parse)
    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _number_type(
    kind: Callable[[str], Number], fits: Callable[[Number], bool], wanted: str
) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        with suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise argparse.ArgumentTypeError(f"must be {wanted}: {text!r}")

    return read


positive = _number_type(int, lambda value: value >= 1, "an integer of 1 or more")
natural = _number_type(int, lambda value: value >= 0, "an integer of 0 or more")
number = _number_type(float, lambda value: 0 <= value < math.inf, "a number of 0 or more")
share = _number_type(float, lambda value: 0 <= value <= 1, "a share from 0 to 1")
above_zero = _number_type(float, lambda value: 0 < value < math.inf, "a number above 0")
"""Argparse types."""


def output_path(text: str) -> Path:
    """An argparse type: the path of an output, which no dash is."""
    if text == "-":
        raise argparse.ArgumentTypeError("'-' is no file. Name one, or /dev/stdout")
    return Path(text)


_TYPES: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("B", "D", "K", "L", "N", "T", "V", "REQUESTS", "STEPS"), positive),
    **dict.fromkeys(("R", "S", "PORT", "STEP"), natural),
    **dict.fromkeys(("SHARE", "TIMES"), number),
    **dict.fromkeys(("DAYS", "GIB", "HOURS"), above_zero),
    **dict.fromkeys(("DIR", "FILE", "FILE.npy", "FILE|FOLDER", "FOLDER"), Path),
}
"""Placeholder of an option's value → its type, unless the option states another."""


def add_option(parser: argparse._ActionsContainer, usage: str, **settings: Any) -> None:
    """Add an option by its usage, such as ``-o --output FILE``, or an argument.

    ``settings``: as of ``add_argument``; ``metavar`` and, for most placeholders, ``type`` follow
    from the usage. An option without placeholder and ``choices`` is a switch.
    """
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    if flags and len(words) > len(flags):
        placeholder = usage.removeprefix(" ".join(flags)).strip()
        kind = output_path if "--output" in flags else _TYPES.get(placeholder, str)
        settings = {"type": kind, **settings, "metavar": placeholder}
    elif flags and "choices" not in settings:
        settings = {"action": "store_true", **settings}
    parser.add_argument(*(flags or words), **settings)


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
    add_option(
        parser,
        "--log [json:]LEVEL",
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
    from seqplan.costs.lengths import parse_tokenizer

    add_option(
        parser,
        "--tokenizer PATH|X",
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

    add = partial(add_option, parser)
    add("data", metavar="DATA", help="lengths.npy, or any source of lengths")
    add("--profile NAME|FILE", required=True, help="seqplan profile list")
    add("--gpus N", required=True)
    add("--max-len L", required=True, help="truncate sequences to this")
    add("--tokens T", help=f"tokens of a step; default {TOKENS_PER_GPU} per GPU")


def add_usable_schemes(parser: argparse.ArgumentParser) -> None:
    """Add what decides which schemes may be used: shards, filters and the trainer."""
    from seqplan.planner.proposal.scheme_filter import SchemeFilter

    add_option(
        parser,
        "--optimizer-shards D",
        help="ranks over which optimizer states are sharded; default all",
    )
    add_option(
        parser,
        "--schemes FILTER,…",
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
    add_option(parser, "--trainer", choices=_Trainers(), help=help_text)


@as_argument
def scheme_filter(text: str) -> SchemeFilter:
    """An argparse type: filters of schemes, separated by commas."""
    from seqplan.planner.proposal.scheme_filter import SchemeFilter

    return SchemeFilter.parse(text.split(","))


def usable_profile(args: argparse.Namespace) -> Profile:
    """The profile that was named, with the schemes that may be used; ``ProfileError`` for none."""
    from seqplan.costs.shipped.catalogue import find_profile

    profile = find_profile(args.profile)
    if args.trainer is not None:
        from seqplan.planner.proposal.backends import find_backend

        profile = find_backend(args.trainer).usable_profile(profile, args.gpus)
    schemes: SchemeFilter = args.schemes
    return schemes.apply(profile)


def workload_of(args: argparse.Namespace) -> Workload:
    """Return the planning problem; ``ValueError`` for numbers that do not fit together."""
    from seqplan.planner.workload import TOKENS_PER_GPU, Workload

    return Workload(
        args.gpus,
        args.max_len,
        args.tokens or TOKENS_PER_GPU * args.gpus,
        include_flagged=args.schemes.flagged,
        optimizer_shards=args.optimizer_shards,
    )


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
    overlap = share(shares[0]) if shares else 0.0
    if not named or named == ["derived"]:
        return SyncOption("derived", overlap)
    if named == ["none"]:
        return SyncOption(None, overlap)
    times = [number(part) for part in named]
    return SyncOption((times[0], times[-1]), overlap)


def add_sync(parser: argparse.ArgumentParser) -> None:
    """Add ``--sync``."""
    add_option(
        parser,
        "--sync MS[,MS]",
        type=sync_option,
        default=SyncOption(),
        help="sync of parameters and gradients between equal replicas and between different "
        "layouts, with overlap=SHARE hidden by computation; derived (default): for each layout "
        "from its bytes and the cluster's links; none: choose by forward and backward alone, with "
        "groups that stay within the step",
    )


def add_execution(
    parser: argparse.ArgumentParser,
    multiple: str = "in lockstep the micro-steps of every step are a multiple of M; default 1",
) -> None:
    """Add ``--execution`` and ``--micro-step-multiple``; ``multiple``: the help of the second."""
    from seqplan.planner.execution import EXECUTIONS

    add_option(
        parser,
        "--execution",
        choices=EXECUTIONS,
        help="uniform: one scheme on all ranks, the same at every step; static: a strategy for "
        "each step, whose groups stay within it; regroup: groups may also change within a step; "
        "lockstep: all ranks run their k-th micro-batch together, in groups formed for each "
        "micro-step (FSDP, Megatron's dynamic context parallelism); default: what --trainer runs, "
        "lockstep under ZeRO-3, else regroup",
    )
    add_option(parser, "--micro-step-multiple M", type=positive, default=1, help=multiple)


def add_robust(parser: argparse.ArgumentParser) -> None:
    """Add ``--robust``."""
    add_option(
        parser,
        "--robust SHARE",
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
    add_option(
        parser,
        "--workers W|ray:W",
        type=workers_option,
        default="1",
        help=f"{help_text}; ray:W are actors of the Ray cluster at RAY_ADDRESS; default 1",
    )
