"""``seqplan profile list``: the profiles that ship, with the origin of their numbers."""

from __future__ import annotations

import argparse
import json

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import table
from seqplan.api.cli.profile.show_profile import profile_fields
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import list_shipped, load_shipped
from seqplan.plans.percent import percent, wrap_text

DESCRIPTION = "List the profiles that ship, with the origin of their numbers."

EXAMPLES = """\
example:
  seqplan profile list
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "--json", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    profiles = [load_shipped(name) for name in list_shipped()]
    if args.json:
        print(json.dumps([profile_fields(profile) for profile in profiles], ensure_ascii=False))
    else:
        print("\n".join(_listing(profiles)))
    return 0


def _listing(profiles: list[Profile]) -> list[str]:
    lines = table(
        ("profile", "hardware", "schemes", "ZeRO", "error against devices"),
        [
            (p.name, p.hardware, str(len(p.schemes)), str(p.zero_stage), _device_error(p))
            for p in profiles
        ],
        left=2,
    )
    for source in dict.fromkeys(profile.source for profile in profiles):
        names = [profile.name for profile in profiles if profile.source == source]
        text = f"{', '.join(names)}: {source}"
        lines += ["", *wrap_text(text, 98, break_on_hyphens=False, break_long_words=False)]
    return lines


def _device_error(profile: Profile) -> str:
    error = profile.stated_error
    if error is None:
        return "unknown"
    return percent(error, 0) if profile.device_error is not None else f"{percent(error, 0)} or more"
