"""``seqplan refit``: a profile corrected by the step times of a training job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.frame.output_file import check_output
from seqplan.api.cli.frame.terminal import percent, table
from seqplan.api.cli.frame.verb import add_verb
from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.plan import Plan
from seqplan.profiler.profile import Profile
from seqplan.profiler.shipped.catalogue import find_profile

if TYPE_CHECKING:
    from seqplan.api.cli.frame.service_client import ServiceClient
    from seqplan.profiler.fit.latency_fit import Errors
    from seqplan.profiler.fit.refit import Measurement, Refitted

_DESCRIPTION = """\
Compare the step times that ranks measured with what the profile predicted, and write a profile
whose coefficients fit them. A scheme is changed only where enough of its pipelines were measured
and the new coefficients predict those better that they were not made from. The old profile stays as
it is. Plans and times come from files, or from a job of a running service.
"""

_EXAMPLES = """\
measurements, a line each: {"step":0,"rank":3,"measured_ms":812.5}

examples:
  seqplan refit --profile profile.json --plans plans.jsonl --measurements times.jsonl \\
    -o refitted.json
  seqplan refit --server http://127.0.0.1:8400 --job job -o refitted.json
"""

_PAGE = 10_000


@dataclass(frozen=True)
class _Material:
    """What a profile is compared with; ``where``: its name in messages."""

    profile: Profile
    plans: Iterable[Plan]
    measurements: Sequence[Measurement]
    where: str


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the verb and its options."""
    parser = add_verb(
        subparsers,
        "refit",
        run,
        help="correct a profile by measured step times",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "--profile",
        metavar="NAME|FILE",
        help="the profile to correct; with --server by default the one that the job was planned by",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--plans", metavar="FILE", help="the plans that were run")
    source.add_argument("--server", metavar="URL", help="a running service, http://HOST:PORT")
    parser.add_argument("--measurements", metavar="FILE", type=Path, help="with --plans")
    parser.add_argument("--job", metavar="ID", help="with --server")
    parser.add_argument(
        "--token",
        help="for a service that wants one; better in SEQPLAN_TOKEN, which ps cannot show",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="without: only compare")
    parser.add_argument("--json", action="store_true")
    return parser


def run(args: argparse.Namespace) -> int:
    """The verb. ``ValueError`` for files, or a job, that do not fit together."""
    from seqplan.api.cli.frame.service_client import ServiceClient
    from seqplan.profiler.fit.refit import observed, refit, refitted_document

    check_output(args.output, args.profile, args.plans, args.measurements)
    if args.server is not None:
        if args.job is None:
            raise ValueError("--server: say which job of it with --job")
        with ServiceClient(args.server, args.token) as client:
            material = _of_job(client, args)
            by_scheme = observed(material.plans, material.measurements)
    else:
        material = _of_files(args)
        by_scheme = observed(material.plans, material.measurements)
    profile, measurements = material.profile, material.measurements
    results = []
    for scheme, samples in sorted(by_scheme.items()):
        entry = profile.by_scheme.get(scheme)
        if entry is None:
            raise ValueError(f"{material.where}: has scheme {scheme}, which {profile.name} lacks")
        results.append(refit(entry.latency, scheme, samples))
    if not results:
        raise ValueError(
            f"{args.measurements or material.where}: no step of {material.where} has a pipeline "
            "of one stage that was measured on all of its ranks and had them to itself"
        )
    if args.output is not None:
        source = f"refitted to {len(measurements):,} measured rank times of training"
        document = refitted_document(profile, results, source)
        Profile.from_document(document, str(args.output))
        with atomic_write(args.output, "w") as file:
            file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if args.json:
        print(json.dumps([_fields(result) for result in results]))
        return 0
    header = ("scheme", "pipelines", "profile's error", "held-out error after", "", "why")
    rows = [
        (
            str(result.scheme),
            str(result.before.samples),
            _pair(result.before),
            _pair(result.after),
            result.how,
            result.reason,
        )
        for result in results
    ]
    print("\n".join(table(header, rows)))
    print("errors: median / p90, relative")
    return 0


def _of_files(args: argparse.Namespace) -> _Material:
    from seqplan.profiler.fit.refit import read_measurements

    for name in ("profile", "measurements"):
        if getattr(args, name) is None:
            raise ValueError(f"--plans: wants --{name}, too")
    profile = find_profile(args.profile)
    return _Material(
        profile, read_plans(args.plans), read_measurements(args.measurements), args.plans
    )


def _of_job(client: ServiceClient, args: argparse.Namespace) -> _Material:
    from seqplan.profiler.fit.refit import MeasurementError, measurement

    job, where = ("v1", "jobs", args.job), f"job {args.job} of {args.server}"
    proposal = client.json(*job)["proposal"]
    if args.profile is None:
        document = client.json("v1", "proposals", proposal)["document"]
        profile = Profile.from_document(document["profile"], f"{where}: profile")
    else:
        profile = find_profile(args.profile)
    rows = client.items(*job, "measurements", cursor="after", limit=_PAGE)
    try:
        measurements = [measurement(row) for row in rows]
    except (KeyError, TypeError) as error:
        raise MeasurementError(f"{where}: a measurement cannot be read: {error}") from None
    if not measurements:
        raise MeasurementError(f"{where}: no rank has measured a step yet")
    steps = sorted({timed.step for timed in measurements})
    plans = (
        from_json(client.text(*job, "plans", step), strict=False, origin=f"{where}: step {step}")
        for step in steps
    )
    return _Material(profile, plans, measurements, where)


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
