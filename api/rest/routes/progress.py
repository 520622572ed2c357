"""How a job is doing: how far it is, its steps and what they took. All of it only reads."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from seqplan.api.rest.payloads.answers import (
    MeasurementsPage,
    Progress,
    ProgressPage,
    StepsPage,
    answers,
)
from seqplan.api.rest.payloads.parameters import AfterStep, Limit
from seqplan.api.rest.payloads.problems import Problem, require_found
from seqplan.api.rest.state.readers import read_off_loop
from seqplan.api.rest.state.shared import ServiceOf, SummariesOf, WatchOf
from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries, step_fields
from seqplan.api.store import schema
from seqplan.api.store.rows import JobOutline, columns, get, page
from seqplan.api.store.slow_factors import list_lost, read_slowdown
from seqplan.api.store.tables.acks import last_acknowledged, rank_progress
from seqplan.api.store.tables.jobs import STATES
from seqplan.api.store.tables.measurements import measurements_page
from seqplan.api.store.tables.plans import (
    count_planned_beyond,
    digests,
    last_planned,
    plan_lines,
    read_planned_page,
)
from seqplan.planner.workload import MOST_GPUS
from seqplan.plans import service_routes

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


@routes.get(service_routes.PROGRESS, **answers(ProgressPage))
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


@routes.get(service_routes.JOB_PROGRESS, **answers(Progress))
@read_off_loop
def get_progress(
    service: ServiceOf, watch: WatchOf, summaries: SummariesOf, job: str
) -> dict[str, Any]:
    """How far one job is, as in ``/v1/progress``."""
    with service.store.reading() as connection:
        row = require_found(get(connection, JobOutline, job), f"job {job}")
        return _progress(connection, row, watch, summaries)


@routes.get(service_routes.STEPS, **answers(StepsPage))
@read_off_loop
def list_steps(
    service: ServiceOf,
    summaries: SummariesOf,
    job: str,
    after: AfterStep = -1,
    limit: Limit = 200,
) -> dict[str, Any]:
    """Planned steps beyond ``after``: predicted, planning and measured times.

    Times in ms; ``measured_ms``: of the slowest of ``ranks_measured`` ranks.
    """
    with service.store.reading() as connection:
        row = require_found(get(connection, JobOutline, job), f"job {job}")
        planned = read_planned_page(connection, job, after, limit + 1)
        shown = planned[:limit]
        summary_of = summaries.of(
            {step.step: step.digest for step in shown},
            lambda missing: plan_lines(connection, job, missing),
        )
        last_steps = last_acknowledged(connection, job, row.world_size)
    return {
        "items": [step_fields(step, summary_of[step.step], last_steps) for step in shown],
        "next": shown[-1].step if len(planned) > limit else None,
    }


@routes.get(service_routes.MEASUREMENTS, **answers(MeasurementsPage))
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
        require_found(get(connection, JobOutline, job), f"job {job}")
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
    summary = summaries.of(
        digests(connection, job.id, [underway]),
        lambda missing: plan_lines(connection, job.id, missing),
    ).get(underway)
    since_s = None
    if ranks.acknowledged_at is not None:
        since_s = max(0.0, time.time() - ranks.acknowledged_at)
    predicted_ms = None if summary is None else summary.predicted_ms
    return {
        **fields,
        "lost_ranks": lost,
        "slowest": ranks.slowest,
        "fastest": ranks.fastest,
        "slowest_ranks": ranks.slowest_ranks,
        "count_slowest": ranks.count_slowest,
        "since_acknowledged_s": since_s,
        "predicted_ms": predicted_ms,
        "stuck": since_s is not None
        and predicted_ms is not None
        and since_s > max(STUCK_STEPS * predicted_ms / 1000, LEAST_STUCK_S),
        "miscalibrated": watch.is_miscalibrated(job.id),
        "last_planned_step": last_planned(connection, job.id),
        "ahead": count_planned_beyond(connection, job.id, ranks.slowest),
    }
