"""The command line: ``seqplan VERB`` is the module of that name.

Read any verb; what they all stand in is in ``frame``, and parts of the longest ones in
``verb_parts``.
"""

from seqplan.api.cli.framework.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
