"""``seqplan profile show``: the schemes of a profile and their limits on a cluster."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import table
from seqplan.costs.profile import Profile
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.costs.scheme_rules import doubts
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.plans.percent import wrap_text

DESCRIPTION = """\
Show a profile: the origin of its numbers, and its schemes with MaxLen and UtilLen on a cluster.
"""

EXAMPLES = """\
examples:
  seqplan profile show llama-32b-a800-80gb --gpus 64
  seqplan profile show profile.json --gpus 16 --max-len 8192
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("name", metavar="NAME|FILE", help="seqplan profile list")
    add("--gpus N", default=64, help="default 64")
    add("--max-len L", default=32768, help="context; default 32768")
    add("--optimizer-shards D", help="ranks over which optimizer states are sharded; default all")
    add("--json", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ProfileError`` for an unknown or malformed profile."""
    profile = find_profile(args.name)
    if args.optimizer_shards is not None and args.optimizer_shards > args.gpus:
        raise ValueError(
            f"--optimizer-shards must be at most --gpus {args.gpus}: {args.optimizer_shards}"
        )
    schemes = scheme_rows(profile, args.gpus, args.max_len, args.optimizer_shards)
    if args.json:
        print(json.dumps({**profile_fields(profile), "schemes": schemes}, ensure_ascii=False))
    else:
        print("\n".join(_describe_origin(profile)))
        print(f"\non {args.gpus} GPUs, context {args.max_len:,}:")
        print("\n".join([*scheme_table(schemes, args.gpus), *mode_table(schemes)]))
        print("\n".join(scheme_notes(profile)))
    return 0


def scheme_rows(
    profile: Profile, gpus: int, max_len: int, shards: int | None = None
) -> list[dict[str, Any]]:
    """Each scheme of a profile with MaxLen and UtilLen on a cluster, as JSON objects."""
    rows = []
    by_mode = {mode.name: profile.keep_modes({mode.name}) for mode in profile.modes}
    experts = profile.expert_degrees != (1,)
    for place, entry in enumerate(profile.schemes):
        modes = {
            name: latency.as_dict()
            | _max_len(by_mode[name], by_mode[name].schemes[place], gpus, max_len, shards)
            for name, latency in entry.modes.items()
        }
        rows.append(
            {
                "scheme": entry.label,
                **entry.scheme.as_dict(),
                **({"expert_parallel": entry.expert_parallel} if experts else {}),
                "gpus": entry.least_gpus,
                **entry.latency.as_dict(),
                **_max_len(profile, entry, gpus, max_len, shards),
                **({"modes": modes} if modes else {}),
                "util_len": entry.latency.util_len(),
                "flag": entry.flag,
                "origin": entry.origin,
            }
        )
    return rows


def _max_len(
    profile: Profile, entry: ProfiledScheme, gpus: int, max_len: int, shards: int | None
) -> dict[str, int]:
    fits = entry.least_gpus <= gpus
    return {"max_len": profile.model(entry, gpus, max_len, shards).max_len if fits else 0}


def mode_table(rows: list[dict[str, Any]]) -> list[str]:
    """Tabulate MaxLen by recomputation mode of schemes that fit; nothing for one mode."""
    runnable = [row for row in rows if row["max_len"] > 0 and "modes" in row]
    if not runnable:
        return []
    names = list(runnable[0]["modes"])
    lines = ["", f"MaxLen by recomputation mode (coefficients above are of {names[-1]}):"]
    return lines + table(
        ("scheme", *names),
        [
            (row["scheme"], *(f"{row['modes'][name]['max_len']:,}" for name in names))
            for row in runnable
        ],
    )


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
    """Return flags, doubts and the origin of derived coefficients, wrapped."""
    notes = [f"* {entry.label}: {entry.flag}" for entry in profile.schemes if entry.flag]
    notes += [f"? {scheme}: {doubt}" for scheme, doubt in doubts(profile.schemes).items()]
    if any(entry.origin == "derived" for entry in profile.schemes):
        notes.append("° derived, not measured; the profile's notes state their sources")
    return [line for note in notes for line in wrap_text(note, 98, subsequent_indent="  ")]


def _util_len(row: dict[str, Any]) -> str:
    util = row["util_len"]
    if util is None:
        return "—"
    return f"{util:,}" if util <= row["max_len"] else f"({util:,})"


_FIELDS = ("name", "digest", "hardware", "gpus_per_node", "zero_stage")


def profile_fields(profile: Profile) -> dict[str, Any]:
    """Return a profile without its document, as JSON."""
    return {
        **{name: getattr(profile, name) for name in _FIELDS},
        "modes": [mode.name for mode in profile.modes],
        "source": profile.source,
        "residuals": profile.residuals,
        "schemes": [entry.label for entry in profile.schemes],
        "flagged": {e.label: e.flag for e in profile.schemes if e.flag},
        "doubts": {str(scheme): doubt for scheme, doubt in doubts(profile.schemes).items()},
    }


def _describe_origin(profile: Profile) -> list[str]:
    text = (
        f"{profile.name}: {profile.hardware}, {profile.gpus_per_node} GPUs per node, ZeRO-"
        f"{profile.zero_stage}, recomputation: {profile.mode_names}"
    )
    lines = [text, *wrap_text(f"source: {profile.source}", 98, break_on_hyphens=False)]
    return [*lines, f"fit error {profile.residuals}"]
