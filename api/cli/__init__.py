"""The command line: ``seqplan VERB`` is the module of that name."""

from seqplan.api.cli.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
