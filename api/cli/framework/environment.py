"""Option defaults from the environment: ``--max-len`` as ``SEQPLAN_MAX_LEN``, and so on."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def apply_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Take defaults of a command's options from ``SEQPLAN_*`` variables.

    The parsed arguments carry ``settle``, to be called with them before they are used.
    """
    # Kubernetes gives the address of a Service named seqplan to every container, as SEQPLAN_PORT.
    environment = {name: value for name, value in environment.items() if not _ADDRESS.match(value)}
    parser.set_defaults(settle=lambda args: None)
    alternatives = [a for g in parser._mutually_exclusive_groups for a in g._group_actions]
    for action in parser._actions:
        value = environment.get(_variable(action))
        if value is None or action in alternatives:
            continue
        if action.nargs == 0:
            action.default = value.lower() not in ("", "0", "false", "no")
        else:
            action.default = value  # argparse converts and checks text defaults like flags
        action.required = False
    for group in parser._mutually_exclusive_groups:
        _apply_to_alternatives(parser, group, environment)


def _apply_to_alternatives(
    parser: argparse.ArgumentParser,
    group: argparse._MutuallyExclusiveGroup,
    environment: Mapping[str, str],
) -> None:
    """Options of which one is given: any flag goes before the environment's choice among them."""
    actions = group._group_actions
    stated = {a: environment[_variable(a)] for a in actions if _variable(a) in environment}

    def settle(args: argparse.Namespace) -> None:
        earlier(args)
        if stated and not any(hasattr(args, action.dest) for action in actions):
            if len(stated) > 1:
                parser.error(f"{' and '.join(map(_variable, stated))} exclude each other")
            for action, text in stated.items():
                setattr(args, action.dest, action.type(text) if callable(action.type) else text)
        for action in actions:
            if not hasattr(args, action.dest):
                setattr(args, action.dest, None)

    earlier = parser.get_default("settle")
    parser.set_defaults(settle=settle)
    if stated:
        group.required = False
    for action in actions:
        action.default = argparse.SUPPRESS  # so that only a flag sets it


def _variable(action: argparse.Action) -> str:
    """Return the environment variable of an option, or an invalid name without one."""
    for name in action.option_strings:
        if name.startswith("--") and name != "--help":
            return "SEQPLAN_" + name[2:].replace("-", "_").upper()
    return ""
