"""Options on what an iteration takes beside propagation, shared by the verbs that weigh it."""

from __future__ import annotations

import argparse


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
