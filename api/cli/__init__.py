"""The command line: ``seqplan VERB`` is the module of that name.

Read any verb; what they all stand in is in ``frame``. ``compare_output``, ``profile_measured`` and
``profile_derived`` are parts of the verbs in their names. Public are ``main``, the parser and the
list of verbs.
"""

from seqplan.api.cli.frame.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
