"""Registration of commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from seqplan.api.cli.framework.commands import COMMANDS


def add_command(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Register a command of ``COMMANDS`` and return its parser.

    The parsed arguments carry ``run``. ``description`` and ``epilog`` keep their line breaks.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name.split()[-1],
        help=COMMANDS[name].help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser
