"""``seqplan profile refit``: a profile corrected by the step times of a training job."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.check.check_plans import find_part
from seqplan.api.cli.framework import server_options
from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import (
    ERRORS,
    check_output,
    count_of,
    describe_errors,
    print_note,
    table,
    write_profile,
)
from seqplan.api.cli.parts.measured_steps import fetch_profiles
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.plans.format.plan_file import read_plans

if TYPE_CHECKING:
    from seqplan.api.client.client import Client
    from seqplan.costs.fit.measurements import Observations
    from seqplan.costs.fit.refit import Refitted, RefittedProfile
    from seqplan.plans.plan import Plan

DESCRIPTION = """\
Compare the step times that ranks measured with the profile's predictions, and write a profile
whose coefficients fit them. A scheme is corrected by its times if enough of its pipelines were
measured and the new coefficients predict held-out ones better; schemes with too few are scaled as
the measured ones. Nothing is written if no measured scheme is corrected. The old profile stays.
Plans and times come from files, or from a job of a running service.
"""

EXAMPLES = """\
measurements, a line each: {"step":0,"rank":3,"measured_ms":812.5}

examples:
  seqplan profile refit --profile profile.json --plans plans.jsonl --measurements times.jsonl \\
    -o refitted.json
  seqplan profile refit --server http://127.0.0.1:8400 --job job -o refitted.json
"""


_Material = tuple[Profile, "Observations", str]
"""A profile, its measured times, and the name of these in messages."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add(
        "--profile NAME|FILE",
        help="the profile to correct; with --server by default the one that the job was planned by",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    add_option(source, "--plans FILE", type=str, help="the plans that were run")
    server_options.add_server(source)
    add("--measurements FILE", help="with --plans")
    add("--job ID", help="with --server")
    server_options.add_credentials(parser)
    add("-o --output FILE", help="without: only compare")
    add("--json")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for files, or a job, that do not fit together."""
    from seqplan.costs.fit.refit import refit_profile

    check_output(args.output, args.profile, args.plans, args.measurements)
    if args.server is not None:
        if args.job is None:
            raise ValueError("--server requires --job")
        if args.measurements is not None:
            raise ValueError("--measurements is for --plans. Leave it out")
        with server_options.connect(args) as client:
            profile, observations, where = _read_job(client, args)
    else:
        profile, observations, where = _read_files(args)
    profile = profile.at_expert_parallel(observations.expert_parallel)
    by_scheme = observations.by_scheme
    if lacking := sorted(set(by_scheme) - set(profile.by_scheme)):
        raise ValueError(f"{where}: has scheme {lacking[0]}, which {profile.name} lacks")
    if not by_scheme:
        raise ValueError(
            f"{args.measurements or where}: no step of {where} has a pipeline "
            "of one stage that was measured on all of its ranks and had them to itself. "
            "Measure steps planned with schemes of pp 1, or run profile measure"
        )
    refitted = refit_profile(profile, by_scheme)
    if args.output is not None:
        _write(args.output, profile, refitted, observations.rank_times)
    if args.json:
        print(json.dumps([_fields(result) for result in refitted.schemes]))
    else:
        print("\n".join(_lines(refitted)))
    for line in _list_left_out(observations, args.server is not None):
        print(line, file=sys.stderr if args.json else sys.stdout)
    if args.output is not None and not args.json:
        print(f"written: {args.output}")
    return 0


def _write(path: Path, profile: Profile, refitted: RefittedProfile, rank_times: int) -> None:
    """Write the corrected profile; ``ValueError`` if no scheme was corrected by its times."""
    from seqplan.costs.fit.refit import LEAST_TO_SCALE, write_refit

    common = refitted.common
    if common is None:
        most = max(refitted.schemes, key=lambda result: result.before.samples)
        if most.before.samples < LEAST_TO_SCALE:
            raise ValueError(
                f"{path}: not written: no scheme has the {LEAST_TO_SCALE} measured pipelines that "
                f"a correction needs ({most.scheme} has {most.before.samples}); measure more steps"
            )
        raise ValueError(
            f"{path}: not written: profile {profile.name} predicts the measured times best as it "
            "is; go on with it"
        )
    direct = sum(result.how in ("scaled", "fitted") for result in refitted.schemes)
    others = sum(result.how == "extrapolated" for result in refitted.schemes)
    corrected = "1 scheme by its times" if direct == 1 else f"{direct} schemes by their times"
    source = f"refitted to {rank_times:,} measured rank times of training: {corrected}"
    if others:
        how = f"scaled by {common.factor:.3f}, as the measured schemes{common.disagreement}"
        if refitted.overhead is not None:
            how = f"{refitted.overhead}, as the measured schemes"
        source += f", {others} without enough of them {how}"
    document = write_refit(profile, refitted.schemes, source)
    write_profile(path, document)


def _lines(refitted: RefittedProfile) -> list[str]:
    """A row for each scheme that was measured, and one for all others."""
    rows = [
        (
            str(result.scheme),
            str(result.before.samples),
            describe_errors(result.before),
            describe_errors(result.after),
            result.how,
            result.reason,
        )
        for result in refitted.schemes
        if result.before.samples
    ]
    if others := [result for result in refitted.schemes if not result.before.samples]:
        name = str(others[0].scheme) if len(others) == 1 else f"{len(others)} others"
        rows.append((name, "0", "–", "–", others[0].how, others[0].reason))
    header = ("scheme", "pipelines", "profile's error", "held-out error after", "", "why")
    return [*table(header, rows), ERRORS]


def _list_left_out(observations: Observations, served: bool) -> list[str]:
    """Return a line for each reason why times were not used."""
    steps = observations.unplanned_steps
    missing = "whose plans have expired" if served else "that are not in the plans"
    counts = {
        "other ranks of their pipelines were not measured": observations.incomplete,
        "their ranks had no pipeline of one stage to themselves, or one with loads or slow ranks": (
            observations.unmeasurable
        ),
    }
    if steps:
        of_steps = f"of {count_of(len(steps), 'step')} {missing}, {steps[0]} the first"
        counts[of_steps] = observations.unplanned
    return [
        f"{count_of(count, 'rank time')} left out: {why}" for why, count in counts.items() if count
    ]


def _read_files(args: argparse.Namespace) -> _Material:
    from seqplan.costs.fit.measurements import match_measurements, read_measurements

    if args.job is not None:
        raise ValueError("--job is for --server. Leave it out")
    for name in ("profile", "measurements"):
        if getattr(args, name) is None:
            raise ValueError(f"--plans requires --{name}")
    profile = find_profile(args.profile)
    measurements = read_measurements(args.measurements, print_note)
    plans = _check_plans(read_plans(args.plans), profile, args.plans)
    return profile, match_measurements(plans, measurements), args.plans


def _check_plans(plans: Iterable[Plan], profile: Profile, origin: str) -> list[Plan]:
    """List the plans; ``ValueError`` without any, or if none was planned from the profile.

    Those of a job that was refitted are of several profiles.
    """
    listed = list(plans)
    if not listed:
        raise ValueError(f"{origin}: no plans. Name another file, or plan again")
    by_profile = {plan.provenance.profile: plan for plan in reversed(listed)}
    if not any(map(profile.with_digest, by_profile)):
        for plan in listed[:1]:
            find_part(plan, profile, origin)
    return listed


def _read_job(client: Client, args: argparse.Namespace) -> _Material:
    from seqplan.costs.fit.measurements import Measurement, MeasurementError, match_measurements

    where = f"job {args.job} of {args.server}"
    if args.profile is None:
        profile = server_options.fetch_profile(client, client.get_job(args.job).proposal, where)
    else:
        profile = find_profile(args.profile)
        planned_by = [known.digest for known in fetch_profiles(client, args.job)]
        if not any(profile.with_digest(digest) for digest in planned_by):
            raise ValueError(
                f"profile {profile.name}: {where} was planned from another profile "
                f"({planned_by[-1][:19]}…). Give that one, or leave --profile out"
            )
    rows = client.items(client.list_measurements, args.job)
    measurements = [Measurement(row.step, row.rank, row.measured_ms) for row in rows]
    if not measurements:
        raise MeasurementError(f"{where}: no rank has measured a step yet")
    steps = sorted({timed.step for timed in measurements})
    fetched = (server_options.fetch_plan(client, args.job, step) for step in steps)
    plans = (plan for plan in fetched if plan is not None)
    return profile, match_measurements(plans, measurements), where


def _fields(result: Refitted) -> dict[str, Any]:
    return {
        "scheme": result.scheme.as_dict(),
        "pipelines": result.before.samples,
        "before": {"median": result.before.median, "p90": result.before.p90},
        "after": {"median": result.after.median, "p90": result.after.p90},
        "how": result.how,
        "reason": result.reason,
        **result.latency.as_dict(),
    }
