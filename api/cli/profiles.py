"""``seqplan profiles``: the profiles that ship, and the limits of one on a cluster."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from seqplan.api.cli.framework.command import add_command
from seqplan.api.cli.framework.options import positive
from seqplan.api.cli.framework.terminal import percent, table
from seqplan.costs.profile import Profile
from seqplan.costs.scheme_rules import doubts
from seqplan.costs.shipped.catalogue import find_profile, list_shipped, load_shipped

_DESCRIPTION = """\
List the profiles that ship, with where their numbers come from. With a name (or a profile file)
and --gpus, list its schemes with MaxLen and UtilLen on that many GPUs.
"""

_EXAMPLES = """\
examples:
  seqplan profiles
  seqplan profiles llama-32b-a800-80gb --gpus 64
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the command and its options."""
    parser = add_command(
        subparsers,
        "profiles",
        run,
        help="list the profiles that ship, with provenance",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME|FILE", nargs="?", help="show this profile's schemes")
    parser.add_argument("--gpus", metavar="N", type=positive, default=64, help="default 64")
    parser.add_argument(
        "--max-len", metavar="L", type=positive, default=32768, help="context; default 32768"
    )
    parser.add_argument(
        "--optimizer-shards",
        metavar="D",
        type=positive,
        help="ranks over which optimizer states are sharded; default all",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ProfileError`` for an unknown or malformed profile."""
    if args.name is None:
        profiles = [load_shipped(name) for name in list_shipped()]
        if args.json:
            print(json.dumps([_as_json(profile) for profile in profiles], ensure_ascii=False))
        else:
            print("\n".join(_listing(profiles)))
        return 0
    profile = find_profile(args.name)
    if args.optimizer_shards is not None and args.optimizer_shards > args.gpus:
        raise ValueError(f"--optimizer-shards {args.optimizer_shards}: above --gpus {args.gpus}")
    schemes = scheme_rows(profile, args.gpus, args.max_len, args.optimizer_shards)
    if args.json:
        print(json.dumps({**_as_json(profile), "schemes": schemes}, ensure_ascii=False))
    else:
        print("\n".join(_describe_origin(profile)))
        print(f"\non {args.gpus} GPUs, context {args.max_len:,}:")
        print("\n".join(scheme_table(schemes, args.gpus)))
        print("\n".join(scheme_notes(profile)))
    return 0


def scheme_rows(
    profile: Profile, gpus: int, max_len: int, optimizer_shards: int | None = None
) -> list[dict[str, Any]]:
    """Each scheme of a profile with MaxLen and UtilLen on a cluster, as JSON objects."""
    rows = []
    for entry in profile.schemes:
        model = profile.model(entry, gpus, max_len, optimizer_shards)
        rows.append(
            {
                "scheme": str(entry.scheme),
                **entry.scheme.as_dict(),
                "gpus": entry.scheme.gpus,
                "a": entry.latency.a,
                "b": entry.latency.b,
                "c": entry.latency.c,
                "max_len": model.max_len if entry.scheme.gpus <= gpus else 0,
                "util_len": entry.latency.util_len(),
                "flag": entry.flag,
                "origin": entry.origin,
            }
        )
    return rows


def scheme_table(rows: list[dict[str, Any]], gpus: int) -> list[str]:
    """Tabulate the schemes that fit, then name the others with the reason."""
    runnable = [row for row in rows if row["max_len"] > 0]
    lines = table(
        ("scheme", "GPUs", "MaxLen", "UtilLen", "a ms/token²", "b ms/token", "c ms"),
        [
            (
                row["scheme"]
                + ("*" if row["flag"] else "")
                + ("°" if row["origin"] == "derived" else ""),
                str(row["gpus"]),
                f"{row['max_len']:,}",
                _util_len(row),
                f"{row['a']:.3g}",
                f"{row['b']:.4f}",
                f"{row['c']:.1f}",
            )
            for row in runnable
        ],
    )
    if large := [row for row in rows if row["gpus"] > gpus]:
        lines.append(f"more than {gpus} GPUs: {_names(large)}")
    if full := [row for row in rows if row["gpus"] <= gpus and not row["max_len"]]:
        lines.append(f"no room for the model states: {_names(full)}")
    return lines


def _names(rows: list[dict[str, Any]]) -> str:
    """Name measured schemes, and count the derived ones."""
    names = [row["scheme"] for row in rows if row["origin"] != "derived"]
    derived = len(rows) - len(names)
    return ", ".join([*names, *([f"{derived} derived"] if derived else [])])


def scheme_notes(profile: Profile) -> list[str]:
    """Flags, doubts and where derived coefficients come from, wrapped."""
    notes = [f"* {entry.scheme}: {entry.flag}" for entry in profile.schemes if entry.flag]
    notes += [f"? {scheme}: {doubt}" for scheme, doubt in doubts(profile.schemes).items()]
    if any(entry.origin == "derived" for entry in profile.schemes):
        notes.append("° derived, not measured; the profile's notes state their sources")
    return [line for note in notes for line in textwrap.wrap(note, 98, subsequent_indent="  ")]


def _util_len(row: dict[str, Any]) -> str:
    util = row["util_len"]
    if util is None:
        return "—"
    return f"{util:,}" if util <= row["max_len"] else f"({util:,})"


def _as_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "digest": profile.digest,
        "hardware": profile.hardware,
        "gpus_per_node": profile.gpus_per_node,
        "zero_stage": profile.zero_stage,
        "checkpointing": profile.checkpointing,
        "source": profile.source,
        "residuals": profile.residuals,
        "schemes": [str(entry.scheme) for entry in profile.schemes],
        "flagged": {str(e.scheme): e.flag for e in profile.schemes if e.flag},
        "doubts": {str(scheme): doubt for scheme, doubt in doubts(profile.schemes).items()},
    }


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
        lines += ["", *textwrap.wrap(text, 98, break_on_hyphens=False, break_long_words=False)]
    return lines


def _device_error(profile: Profile) -> str:
    error = profile.device_error
    return "unknown" if error is None else percent(error, 0)


def _describe_origin(profile: Profile) -> list[str]:
    text = (
        f"{profile.name}: {profile.hardware}, {profile.gpus_per_node} GPUs per node, ZeRO-"
        f"{profile.zero_stage}, activation checkpointing: {profile.checkpointing}"
    )
    lines = [text, *textwrap.wrap(f"source: {profile.source}", 98, break_on_hyphens=False)]
    return [*lines, f"fit error {profile.residuals}"]
