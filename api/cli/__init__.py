"""The command line: ``seqplan VERB`` is the module of that name.

Read ``entry`` (from arguments to an exit code), ``verb``, ``options`` and ``environment`` (what
verbs share), then any verb. ``terminal`` and ``compare_output`` write for people. Public are
``main``, the parser and the list of verbs.
"""

from seqplan.api.cli.entry import VERBS, build_parser, main

__all__ = ["VERBS", "build_parser", "main"]
