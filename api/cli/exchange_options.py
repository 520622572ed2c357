"""Options on what an iteration takes beside propagation, shared by the verbs that weigh it."""

from __future__ import annotations

import argparse

from seqplan.planner.exchange import Exchange, exchange_of
from seqplan.profiler.profile import Profile


def number(text: str) -> float:
    """An argparse type: a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"wants a number of 0 or more, not {text!r}")
    return value


def exchange_times(text: str) -> tuple[float, float]:
    """An argparse type: one time (ms) for all replicas, or two: equal ones, different ones."""
    parts = [number(part) for part in text.split(",")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"wants one time or two, not {text!r}")
    return parts[0], parts[-1]


def published_or_times(text: str) -> tuple[float, float] | str:
    """An argparse type: ``published``, or times as ``exchange_times``."""
    return text if text == "published" else exchange_times(text)


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """``--overlap``: how much of the exchange propagation hides."""
    parser.add_argument(
        "--overlap",
        metavar="SHARE",
        type=number,
        default=0.0,
        help="share of the exchange hidden by propagation; default 0",
    )


def proposed_with(
    profile: Profile,
    gpus: int,
    exchange_ms: tuple[float, float] | str | None,
    overlap: float,
    spelled: tuple[str, str] = ("--exchange-ms", "--overlap"),
) -> Exchange | None:
    """The exchange to choose strategies with; None where ``exchange_ms`` was not given.

    ``exchange_ms``: as ``published_or_times`` reads it; ``spelled``: how the caller writes the two.
    ``ValueError`` for an overlap of nothing, one beyond 1, and under ZeRO-3.
    """
    if exchange_ms is None:
        if overlap:
            raise ValueError(f"{spelled[1]} is of the exchange; give {spelled[0]} too")
        return None
    if profile.rounds:
        raise ValueError(
            f"{spelled[0]} decides between strategies, but profile {profile.name} is of ZeRO-3, "
            "where there is none to choose; leave it out"
        )
    times = exchange_ms if isinstance(exchange_ms, tuple) else None
    return exchange_of(profile, gpus, exchange_ms=times, overlap=overlap)
