"""How a job is doing: how far it is, its steps and what they took. All of it only reads."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.parameters import AfterStep, Digits, Limit, StepOfPlan
from seqplan.api.rest.payloads.plan_response import has_tag
from seqplan.api.rest.payloads.problems import Problem, require_found, require_row
from seqplan.api.rest.state.shared import ServiceOf, SummariesOf, WatchOf, read_off_loop
from seqplan.api.service.calibration_watch import MOST_POINTS, WINDOW, CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries, read_stored, step_fields
from seqplan.api.store import schema
from seqplan.api.store.rows import JobOutline, ListedJob, columns, list_lost, page, read_slowdown
from seqplan.api.store.tables import plans
from seqplan.api.store.tables.acks import last_acknowledged, rank_progress
from seqplan.api.store.tables.jobs import STATES
from seqplan.api.store.tables.measurements import measurements_page
from seqplan.costs.fit.calibration import CalibrationError
from seqplan.planner.simulation.one_f_one_b import ForwardFraction
from seqplan.planner.simulation.timeline import plan_timeline
from seqplan.planner.workload import MOST_GPUS
from seqplan.plans import service_routes
from seqplan.plans.plan import MicroBatch, Plan
from seqplan.plans.recomputation import write_mode

routes = APIRouter(tags=["progress"])

STUCK_STEPS, LEAST_STUCK_S = 3, 10.0
"""A step is taken for stuck after so many times its prediction, and this time at least."""

States = Annotated[
    str,
    Query(
        json_schema_extra={"pattern": f"^(({'|'.join(STATES)})(,|$))*$"},
        description="states, with commas",
    ),
]
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
After = Annotated[
    str, Query(json_schema_extra={"pattern": f"^({_CURSOR.pattern})?$"}, description="STEP.RANK")
]


@routes.get(service_routes.PROGRESS, **answers.describe(answers.ProgressPage))
@read_off_loop
def list_progress(
    service: ServiceOf,
    watch: WatchOf,
    summaries: SummariesOf,
    cursor: str = "",
    limit: Limit = 50,
    state: States = "",
) -> dict[str, Any]:
    """Jobs in order of id, each with how far it is; ``state``: only those in one of these.

    ``slowest``: the last step that every rank but ``lost_ranks`` has acknowledged, −1 for none,
    with some of the ranks that are there; ``ahead``: planned steps beyond it. ``stuck``: no rank
    has acknowledged anything for three times as long as the step is predicted to take, and 10 s.
    """
    states = [one for one in state.split(",") if one]
    if foreign := sorted(set(states) - set(STATES)):
        raise ValueError(f"query.state: {foreign[0]!r} is none of {', '.join(STATES)}")
    which = [schema.jobs.c.state.in_(states)] if states else []
    with service.store.reading() as connection:
        jobs, following = page(connection, JobOutline, cursor, limit, *which)
        progress = [_progress(connection, job, watch, summaries) for job in jobs]
    return {"items": progress, "next": following}


@routes.get(service_routes.JOB_PROGRESS, **answers.describe(answers.Progress))
@read_off_loop
def get_progress(
    service: ServiceOf, watch: WatchOf, summaries: SummariesOf, job: str
) -> dict[str, Any]:
    """How far one job is, as in ``/v1/progress``."""
    with service.store.reading() as connection:
        row = require_row(connection, JobOutline, job)
        return _progress(connection, row, watch, summaries)


@routes.get(service_routes.STEPS, **answers.describe(answers.StepsPage))
@read_off_loop
def list_steps(
    service: ServiceOf, summaries: SummariesOf, job: str, after: AfterStep = -1, limit: Limit = 200
) -> dict[str, Any]:
    """Planned steps beyond ``after``: predicted, planning and measured times.

    Times in ms; ``measured_ms``: of the slowest of ``ranks_measured`` ranks with work; ``error``:
    over its prediction, −1, null unless all of them were measured.
    """
    with service.store.reading() as connection:
        row = require_row(connection, JobOutline, job)
        planned = plans.read_planned_page(connection, job, after, limit + 1)
        shown = planned[:limit]
        digests = {step.step: step.digest for step in shown}
        summary_of = summaries.of(connection, job, digests)
        idle = {step: summary.idle for step, summary in summary_of.items()}
        shown = plans.leave_out_idle_ranks(connection, job, shown, idle)
        last_steps = last_acknowledged(connection, job, row.world_size)
    return {
        "items": [step_fields(step, summary_of[step.step], last_steps) for step in shown],
        "next": shown[-1].step if len(planned) > limit else None,
    }


@routes.get(service_routes.MEASUREMENTS, **answers.describe(answers.MeasurementsPage))
@read_off_loop
def list_measurements(
    service: ServiceOf, job: str, after: After = "", limit: Limit = 1000
) -> dict[str, Any]:
    """What ranks measured, in order of step and rank; ``after``: the last page's ``next``."""
    cursor = _CURSOR.fullmatch(after) if after else None
    if after and cursor is None:
        raise Problem(422, "invalid-request", f"query.after: {after!r}: must be STEP.RANK")
    begin = (0, -1) if cursor is None else (int(cursor[1]), int(cursor[2]))
    with service.store.reading() as connection:
        require_row(connection, JobOutline, job)
        measured = measurements_page(connection, job, begin, limit + 1)
    shown = measured[:limit]
    items = [{"step": step, "rank": rank, "measured_ms": ms} for step, rank, ms in shown]
    following = f"{shown[-1][0]}.{shown[-1][1]}" if len(measured) > limit else None
    return {"items": items, "next": following}


def _progress(
    connection: Connection, job: JobOutline, watch: CalibrationWatch, summaries: PlanSummaries
) -> dict[str, Any]:
    fields = columns(job)
    lost = list_lost(read_slowdown(fields.pop("slowdown")))
    ranks = rank_progress(connection, job.id, min(job.world_size, MOST_GPUS), lost)
    underway = ranks.slowest + 1
    digests = plans.digests(connection, job.id, [underway])
    summary = summaries.of(connection, job.id, digests).get(underway)
    far = asdict(ranks)
    since_s = None
    if (acknowledged_at := far.pop("acknowledged_at")) is not None:
        since_s = max(0.0, time.time() - acknowledged_at)
    predicted_ms = None if summary is None else summary.predicted_ms
    return {
        **fields,
        "lost_ranks": lost,
        **far,
        "since_acknowledged_s": since_s,
        "predicted_ms": predicted_ms,
        "stuck": since_s is not None
        and predicted_ms is not None
        and since_s > max(STUCK_STEPS * predicted_ms / 1000, LEAST_STUCK_S),
        "miscalibrated": watch.is_miscalibrated(job.id),
        "last_planned_step": plans.last_planned(connection, job.id),
        "ahead": plans.count_planned_beyond(connection, job.id, ranks.slowest),
    }


Window = Annotated[Digits, Query(ge=1, le=1000, description="measured steps to look back on")]
Points = Annotated[Digits, Query(ge=0, le=MOST_POINTS, description="of each scheme, the latest")]


@routes.get(service_routes.CALIBRATION, **answers.describe(answers.CalibrationResponse))
@read_off_loop
def get_calibration(
    service: ServiceOf, watch: WatchOf, job: str, steps: Window = WINDOW, points: Points = 0
) -> dict[str, Any]:
    """Predicted and measured times by scheme over the last measured steps; ratios, not %.

    ``bias`` and ``error.recent`` are medians over the latest pipelines; if ``recent`` has
    left ``limit``, the profile's error, ``warning`` is true and ``message`` explains it.
    ``points``: how many [predicted ms, measured ms] of each scheme to add.
    """
    with service.store.reading() as connection:
        require_row(connection, JobOutline, job)
        of_job = watch.calibration_of(connection, job, steps)
    schemes = []
    for of_scheme in of_job.schemes:
        shown = _shown(of_scheme)
        if points:
            shown["points"] = of_job.points.get(of_scheme.scheme, [])[-points:]
        schemes.append(shown)
    return {
        "job": job,
        "profile": of_job.profile,
        "steps": {"first": of_job.first, "last": of_job.last, "measured": of_job.steps},
        "pipelines": {
            "all": of_job.pipelines,
            "measurable": of_job.measurable,
            "measured": of_job.measured,
        },
        "schemes": schemes,
        "warning": any(shown["warning"] for shown in schemes),
    }


def _shown(of_scheme: CalibrationError) -> dict[str, Any]:
    stated = of_scheme.stated
    return {
        "scheme": str(of_scheme.scheme),
        "pipelines": of_scheme.pipelines,
        "error": {"median": of_scheme.median, "p90": of_scheme.p90, "recent": of_scheme.recent},
        "bias": of_scheme.bias,
        "stated": None
        if stated is None
        else {"samples": stated.samples, "median": stated.median, "p90": stated.p90},
        "limit": of_scheme.limit,
        "limit_assumed": stated is None,
        "warning": of_scheme.warning is not None,
        "message": of_scheme.warning,
    }


_DIGITS = 3
"""Decimals of a timeline: microseconds, so that a large step is a small answer."""


@routes.get(service_routes.TIMELINE, **answers.describe(answers.Timeline))
@read_off_loop
def get_timeline(
    service: ServiceOf, watch: WatchOf, request: Request, job: str, step: StepOfPlan
) -> Response:
    """Return the simulated 1F1B times of each pass, ms from the step's start.

    ``stages[s]``: passes of stage s as [F or B, micro-batch, start, end].
    """
    with service.store.reading() as connection:
        row = require_row(connection, ListedJob, job)
        stored = require_found(
            plans.get_plan(connection, job, step), f"plan of step {step} in job {job}"
        )
        tag = f'"timeline-{stored.digest}"'
        if has_tag(request.headers.get("If-None-Match", "").encode(), tag.encode()):
            return Response(status_code=304, headers={"ETag": tag})
        profile = watch.profile(connection, row.proposal)
    plan = read_stored(stored)
    return JSONResponse(_timeline(plan, profile.forward_fraction), headers={"ETag": tag})


def _timeline(plan: Plan, forward_fraction: ForwardFraction) -> dict[str, Any]:
    times = plan_timeline(plan, forward_fraction)
    pipelines = []
    for pipeline, placed in zip(plan.pipelines, times.pipelines, strict=True):
        stages: list[list[list[Any]]] = [[] for _ in range(pipeline.scheme.pp)]
        for event in placed.events:
            start, end = round(event.start_ms, _DIGITS), round(event.end_ms, _DIGITS)
            stages[event.stage].append([event.phase, event.micro_batch, start, end])
        pipelines.append(
            {
                "scheme": str(pipeline.scheme),
                "ranks": list(pipeline.ranks),
                "micro_step": pipeline.micro_step,
                "start_ms": round(placed.start_ms, _DIGITS),
                "end_ms": round(placed.end_ms, _DIGITS),
                "micro_batches": [_micro_batch(plan, micro) for micro in pipeline.micro_batches],
                "stages": stages,
            }
        )
    return {
        "step": plan.step,
        "world_size": plan.world_size,
        "idle_ranks": list(plan.idle_ranks),
        "predicted_ms": plan.predicted_ms,
        "lower_bound_ms": plan.lower_bound_ms,
        "simulated_ms": times.simulated_ms,
        "forward_fraction": forward_fraction,
        "pipelines": pipelines,
    }


def _micro_batch(plan: Plan, micro: MicroBatch) -> dict[str, Any]:
    return {
        "tokens": micro.tokens,
        "sequences": len(micro.sequences),
        "longest": max((plan.lengths[index] for index in micro.sequences), default=0),
        "cost_ms": micro.cost_ms,
        **write_mode(micro.recompute),
    }
