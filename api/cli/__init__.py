"""The command line: ``framework/commands.py`` names the module of each command.

Read any command; their frame is in ``framework``, and parts of the longest ones in ``parts``.
"""

from seqplan.api.cli.framework.commands import COMMANDS
from seqplan.api.cli.framework.entry import build_parser, main

__all__ = ["COMMANDS", "build_parser", "main"]
