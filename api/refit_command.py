"""``seqplan refit``: a profile corrected by the step times of a training job."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.api.output import check_output
from seqplan.api.terminal import percent, table
from seqplan.plans.atomic import atomic_write
from seqplan.plans.plan_file import read_plans
from seqplan.profiler.profile import Profile
from seqplan.profiler.shipped import find_profile

if TYPE_CHECKING:
    from seqplan.profiler.measured.fit import Errors
    from seqplan.profiler.measured.refit import Refitted

_DESCRIPTION = """\
Compare the step times that ranks measured with what the profile predicted, and write a profile
whose coefficients fit them. A scheme is changed only where enough of its pipelines were measured
and the new coefficients predict those better that they were not made from. The old profile stays as
it is.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the verb; the parsed arguments carry ``run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "refit",
        help="correct a profile by measured step times",
        description=_DESCRIPTION,
        epilog='measurements, a line each: {"step":0,"rank":3,"measured_ms":812.5}\n\n'
        "example:\n  seqplan refit --profile profile.json --plans plans.jsonl \\\n"
        "    --measurements times.jsonl -o refitted.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", metavar="NAME|FILE", required=True)
    parser.add_argument("--plans", metavar="FILE", required=True, help="the plans that were run")
    parser.add_argument("--measurements", metavar="FILE", type=Path, required=True)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="without: only compare")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """The verb. ``ValueError`` for files that do not fit together."""
    from seqplan.profiler.measured.refit import (
        observed,
        read_measurements,
        refit,
        refitted_document,
    )

    check_output(args.output, args.profile, args.plans, args.measurements)
    profile = find_profile(args.profile)
    measurements = read_measurements(args.measurements)
    results = []
    for scheme, samples in sorted(observed(read_plans(args.plans), measurements).items()):
        entry = profile.by_scheme.get(scheme)
        if entry is None:
            raise ValueError(f"{args.plans}: has scheme {scheme}, which {profile.name} lacks")
        results.append(refit(entry.latency, scheme, samples))
    if not results:
        raise ValueError(
            f"{args.measurements}: no step of {args.plans} has a pipeline of one stage that was "
            "measured on all of its ranks and had them to itself"
        )
    if args.output is not None:
        source = f"refitted to {len(measurements):,} measured rank times of training"
        document = refitted_document(profile, results, source)
        Profile.from_document(document, str(args.output))
        with atomic_write(args.output, "w") as file:
            file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if args.json:
        print(json.dumps([_fields(each) for each in results]))
        return 0
    header = ("scheme", "pipelines", "profile's error", "held-out error after", "", "why")
    rows = [
        (
            str(each.scheme),
            str(each.before.samples),
            _pair(each.before),
            _pair(each.after),
            each.how,
            each.reason,
        )
        for each in results
    ]
    print("\n".join(table(header, rows)))
    print("errors: median / p90, relative")
    return 0


def _pair(errors: Errors) -> str:
    if errors.median is None or errors.p90 is None:
        return "–"
    return f"{percent(errors.median)} / {percent(errors.p90)}"


def _fields(result: Refitted) -> dict[str, Any]:
    latency = result.latency
    return {
        "scheme": result.scheme.as_dict(),
        "pipelines": result.before.samples,
        "before": {"median": result.before.median, "p90": result.before.p90},
        "after": {"median": result.after.median, "p90": result.after.p90},
        "how": result.how,
        "reason": result.reason,
        "a": latency.a,
        "b": latency.b,
        "c": latency.c,
    }
