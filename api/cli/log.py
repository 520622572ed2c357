"""``seqplan log``: the jobs of a service, and the planned and measured steps of one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.options import add_option, as_argument
from seqplan.api.cli.framework.output import count_of, seconds, table
from seqplan.api.cli.framework.server_options import add_credentials, add_server, connect
from seqplan.plans.percent import percent

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from seqplan.api.loggers.destinations import Destination
    from seqplan.api.loggers.step_metrics import StepMetrics
    from seqplan.api.store.rows import JobOutline

DESCRIPTION = """\
List the jobs of a running service or of its SQLite store; with --job, the steps of one: predicted
and measured times, optimality gap, planning time, and how many ranks have acknowledged each.
--to writes a record a step to a file or an experiment logger, from a job or from plan files; with
rates and MFU, which count the sync of the plan and no optimizer.
"""

EXAMPLES = """\
examples:
  seqplan log --server http://127.0.0.1:8400
  seqplan log --server http://127.0.0.1:8400 --job job --after 999
  seqplan log --store seqplan.db --job job --json
  seqplan log --server http://127.0.0.1:8400 --job job --to tensorboard:runs/plan
  seqplan log --plans plans.jsonl --measurements times.jsonl --profile profile.json \\
    --to jsonl:steps.jsonl --to wandb:PROJECT --to mlflow:EXPERIMENT
wandb and mlflow read WANDB_… and MLFLOW_… from the environment, as MLFLOW_TRACKING_URI.
"""

_ALL = 10**9
"""More jobs than a store has."""

_JOB_FIELDS = ("id", "state", "world_size", "slowest", "last_planned_step", "last_step", "error")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    source = parser.add_mutually_exclusive_group(required=True)
    add_server(source)
    add_option(source, "--store PATH", help="a SQLite file, in use or not")
    add_option(source, "--plans FILE", type=str, help="with --to: the plans that were run")
    add("--job ID", help="the steps of this job")
    add("--after STEP", default=-1, help="with --job: only the steps beyond this one")
    add_credentials(parser)
    add("--json", help="as JSON")
    add(
        "--to KIND:TARGET",
        action="append",
        type=_destination,
        default=[],
        help="write the steps' records: jsonl:FILE, tensorboard:FOLDER, wandb:PROJECT or "
        "mlflow:EXPERIMENT; may be repeated",
    )
    add("--run NAME", dest="run_name", help="with --to: the run; default the job or file")
    add("--measurements FILE", help="with --plans: measured times")
    add(
        "--profile NAME|FILE",
        help="with --to: the plans' profile, for MFU; of a job by default the one it has",
    )


@as_argument
def _destination(text: str) -> Destination:
    """An argparse type: a destination of records."""
    from seqplan.api.loggers.destinations import Destination

    return Destination.parse(text)


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for a service, store or job that cannot be read."""
    if args.after >= 0 and args.job is None:
        raise ValueError("--after is for the steps of a job. Give --job")
    _check_options(args)
    if args.to:
        return _write_records(args)
    rows = _read_service(args) if args.server is not None else _read_store(args)
    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
    elif rows:
        print("\n".join(_job_lines(rows) if args.job is None else _step_lines(rows)))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise ``ValueError`` for options that do not belong together."""
    if args.to and args.plans is None and args.job is None:
        raise ValueError("--to is for the steps of a job or of plans. Give --job, or --plans")
    if args.to and args.json:
        raise ValueError("--json: --to writes records, and prints none. Leave one out")
    if args.job is not None and args.plans is not None:
        raise ValueError("--job is for --server and --store. Leave it out")
    if args.measurements is not None and args.plans is None:
        raise ValueError("--measurements requires --plans")
    if not args.to:
        for name in ("plans", "run_name", "profile"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.removesuffix('_name')} requires --to")


def _write_records(args: argparse.Namespace) -> int:
    from seqplan.api.cli.framework.output import check_output

    for destination in args.to:
        destination.check_installed()
        if destination.kind == "jsonl":
            inputs = (args.plans, args.measurements, args.profile, args.store)
            check_output(Path(destination.target), *inputs)
    records = _read_records(args)
    if not records:
        print("no steps, nothing written", file=sys.stderr)
        return 0
    run = args.run_name or args.job or Path(args.plans).stem
    for destination in args.to:
        destination.write(records, run)
        print(f"written: {count_of(len(records), 'step')} to {destination}")
    if any(record.predicted_mfu is None for record in records):
        print(f"no MFU: {_explain_no_mfu(args)}", file=sys.stderr)
    return 0


def _explain_no_mfu(args: argparse.Namespace) -> str:
    if args.plans is not None and args.profile is None:
        return "give --profile, which has the model's sizes"
    return "the profile states no sizes of the model, or a GPU of unknown peak"


def _read_records(args: argparse.Namespace) -> list[StepMetrics]:
    from seqplan.api.cli.parts.measured_steps import fetch_job, read_files, read_job
    from seqplan.costs.shipped.catalogue import find_profile

    profile = None if args.profile is None else find_profile(args.profile)
    if args.plans is not None:
        return read_files(args.plans, args.measurements, profile)
    if args.server is not None:
        with connect(args) as client:
            return fetch_job(client, args.job, args.after, profile)
    with _open_store(args) as connection:
        job = _find_job(connection, args)
        return read_job(connection, job, args.after, profile)


def _open_store(args: argparse.Namespace) -> AbstractContextManager[Connection]:
    from seqplan.api.store.read_only import find_database, reading

    return reading(find_database(args.store, "Give --server URL of a service that uses it"))


def _find_job(connection: Connection, args: argparse.Namespace) -> JobOutline:
    from seqplan.api.store.rows import JobOutline, get

    job = get(connection, JobOutline, args.job)
    if job is None:
        raise ValueError(f"{args.store}: no job {args.job!r}. seqplan log lists the jobs")
    return job


def _read_service(args: argparse.Namespace) -> list[dict[str, Any]]:
    with connect(args) as client:
        if args.job is None:
            jobs = client.items(client.list_progress)
            return [job.model_dump(include={*_JOB_FIELDS}) for job in jobs]
        steps = client.items(client.list_steps, args.job, cursor=args.after)
        return [step.model_dump() for step in steps]


def _read_store(args: argparse.Namespace) -> list[dict[str, Any]]:
    from seqplan.api.store.rows import JobOutline, page

    with _open_store(args) as connection:
        if args.job is None:
            jobs, _ = page(connection, JobOutline, "", _ALL)
            return [_job_fields(connection, job) for job in jobs]
        job = _find_job(connection, args)
        return _list_steps(connection, job, args.after)


def _job_fields(connection: Connection, job: JobOutline) -> dict[str, Any]:
    from seqplan.api.store.rows import columns, list_lost, read_slowdown
    from seqplan.api.store.tables.acks import rank_progress
    from seqplan.api.store.tables.plans import last_planned
    from seqplan.planner.workload import MOST_GPUS

    lost = list_lost(read_slowdown(job.slowdown))
    ranks = rank_progress(connection, job.id, min(job.world_size, MOST_GPUS), lost)
    fields = {
        **columns(job),
        "slowest": ranks.slowest,
        "last_planned_step": last_planned(connection, job.id),
    }
    return {name: fields[name] for name in _JOB_FIELDS}


def _list_steps(connection: Connection, job: JobOutline, after: int) -> list[dict[str, Any]]:
    """List the steps as ``GET /v1/jobs/JOB/steps`` does."""
    from seqplan.api.service.plan_summary import PlanSummary, step_fields
    from seqplan.api.store.tables.acks import last_acknowledged
    from seqplan.api.store.tables.plans import iterate_planned, leave_out_idle_ranks

    acknowledged = last_acknowledged(connection, job.id, job.world_size)
    fields = []
    for planned, line in iterate_planned(connection, job.id, after):
        summary = PlanSummary.from_line(line, {})
        idle = {planned.step: summary.idle}
        (step,) = leave_out_idle_ranks(connection, job.id, [planned], idle)
        fields.append(step_fields(step, summary, acknowledged))
    return fields


def _job_lines(jobs: Sequence[dict[str, Any]]) -> list[str]:
    return table(
        ("job", "state", "ranks", "done", "planned", "last", "  error"),
        [
            (
                job["id"],
                job["state"],
                f"{job['world_size']:,}",
                _step(job["slowest"]),
                _step(job["last_planned_step"]),
                _step(job["last_step"]),
                f"  {job['error'] or ''}".rstrip(),
            )
            for job in jobs
        ],
        left=2,
    )


def _step(step: int | None) -> str:
    return "–" if step is None or step < 0 else str(step)


def _step_lines(steps: Sequence[dict[str, Any]]) -> list[str]:
    header = ("step", "tokens", "seqs", "predicted", "measured", "gap", "planning", "ranks")
    return table(
        (*header, "  strategy"),
        [
            (
                str(step["step"]),
                f"{step['tokens']:,}",
                f"{step['sequences']:,}",
                seconds(step["predicted_ms"]),
                seconds(step["measured_ms"]),
                percent(step["gap"], 2),
                f"{step['planning_ms']:.1f} ms",
                f"{step['ranks_acknowledged']:,}",
                f"  {step['strategy']}",
            )
            for step in steps
        ],
        left=0,
    )
