"""``--executor``: where ``--workers`` plan."""

from __future__ import annotations

import argparse

from seqplan.planner.workers.executor import EXECUTORS


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add the option to a verb's parser."""
    parser.add_argument(
        "--executor",
        choices=EXECUTORS,
        default=EXECUTORS[0],
        help="workers are processes here (default), or actors of the Ray cluster at RAY_ADDRESS",
    )
