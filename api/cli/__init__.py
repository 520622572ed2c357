"""The command line: ``seqplan VERB`` is the module of that name.

Read any verb; what they all stand in is in ``frame``, and parts of the longest ones in
``verb_parts``. Public are ``main``, the parser and the list of verbs.
"""

from seqplan.api.cli.frame.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
