"""``seqplan completion``: a script with which a shell completes commands, options and choices."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from seqplan.api.cli.framework.options import add_option

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that completes commands, options, their choices and file names. It is static: a
shell that has loaded it starts no Python.
"""

EXAMPLES = """\
examples:
  seqplan completion bash > ~/.local/share/bash-completion/completions/seqplan
  seqplan completion zsh > "${fpath[1]}/_seqplan"
  seqplan completion fish > ~/.config/fish/completions/seqplan.fish
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import shtab

    from seqplan.api.cli.framework.entry import build_parser

    parser = build_parser({})
    for action in _list_arguments(parser):
        if (kind := _find_kind(action)) is not None:
            action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def _list_arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands, described by one line."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                command = action.choices[listed.dest]
                command.description = listed.help  # which shells show next to its name
                yield from _list_arguments(command)
        else:
            yield action


def _find_kind(action: argparse.Action) -> str | None:
    """Return the shtab constant of the paths that an argument accepts; None for other values."""
    metavar = str(action.metavar)
    if metavar in ("DIR", "FOLDER"):
        return "DIRECTORY"
    if "FILE" in metavar or metavar.endswith((".jsonl", "SOURCE", "STORE", "PATH")):
        return "FILE"
    return None
