"""Options that environment variables may set."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

VARIABLES = {
    "--profile": "SEQPLAN_PROFILE",
    "--store": "SEQPLAN_STORE",
    "--token": "SEQPLAN_TOKEN",
}
"""Option → variable: if a command requires it, and the token in any case. Other variables, such as
``SEQPLAN_PORT`` of Kubernetes, have no effect on options."""


def apply_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Set defaults of options from ``VARIABLES``; an option on the command line goes first."""
    for action in parser._actions:
        for option in action.option_strings:
            value = environment.get(VARIABLES.get(option, ""))
            if value and (action.required or option == "--token"):
                action.default, action.required = value, False
