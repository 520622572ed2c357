"""The command line: ``seqplan COMMAND`` is the module of that name.

Read any command; their frame is in ``framework``, and parts of the longest ones in
``verb_parts``.
"""

from seqplan.api.cli.framework.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
