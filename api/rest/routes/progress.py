"""How a job is doing: how far it is, its steps and what they took. All of it only reads."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from seqplan.api.rest.live.shared import ServiceOf, SummariesOf
from seqplan.api.rest.wire.answers import (
    MeasurementsPage,
    Progress,
    ProgressPage,
    StepsPage,
    answers,
)
from seqplan.api.rest.wire.fields import AfterStep, Limit
from seqplan.api.rest.wire.problems import Problem, known
from seqplan.api.service.plan_summary import PlanSummary
from seqplan.api.store.rows import JobOutline, columns, get, page
from seqplan.api.store.tables.acks import last_acknowledged
from seqplan.api.store.tables.measurements import measurements_page
from seqplan.api.store.tables.plans import (
    PlannedStep,
    last_planned,
    plan_lines,
    planned_beyond,
    planned_page,
)

routes = APIRouter(prefix="/v1", tags=["progress"])

Jobs = Annotated[int, Query(ge=1, le=200)]
Rows = Annotated[int, Query(ge=1, le=10_000)]

_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
After = Annotated[
    str, Query(json_schema_extra={"pattern": f"^({_CURSOR.pattern})?$"}, description="STEP.RANK")
]


@routes.get("/progress", **answers(ProgressPage))
def everything(service: ServiceOf, cursor: str = "", limit: Jobs = 50) -> dict[str, Any]:
    """Jobs in order of id, each with how far it is.

    ``slowest``: the last step that every rank has acknowledged, −1 for none;
    ``ahead``: planned steps beyond it.
    """
    with service.store.reading() as connection:
        jobs, following = page(connection, JobOutline, cursor, limit)
        progress = [_progress(connection, job) for job in jobs]
    return {"items": progress, "next": following}


@routes.get("/jobs/{job}/progress", **answers(Progress))
def one(service: ServiceOf, job: str) -> dict[str, Any]:
    """How far one job is, as in ``/v1/progress``."""
    with service.store.reading() as connection:
        return _progress(connection, known(get(connection, JobOutline, job), f"job {job}"))


@routes.get("/jobs/{job}/steps", **answers(StepsPage))
def steps(
    service: ServiceOf,
    summaries: SummariesOf,
    job: str,
    after: AfterStep = -1,
    limit: Limit = 200,
) -> dict[str, Any]:
    """Planned steps beyond ``after``: what was predicted, what planning and running took.

    Times in ms; ``measured_ms``: of the slowest of ``ranks_measured`` ranks.
    """
    with service.store.reading() as connection:
        row = known(get(connection, JobOutline, job), f"job {job}")
        planned = planned_page(connection, job, after, limit + 1)
        shown = planned[:limit]
        summary_of = summaries.of(
            {step.step: step.digest for step in shown},
            lambda missing: plan_lines(connection, job, missing),
        )
        last_steps = last_acknowledged(connection, job, row.world_size)
    return {
        "items": [_step(step, summary_of[step.step], last_steps) for step in shown],
        "next": shown[-1].step if len(planned) > limit else None,
    }


@routes.get("/jobs/{job}/measurements", **answers(MeasurementsPage))
def measurements(
    service: ServiceOf, job: str, after: After = "", limit: Rows = 1000
) -> dict[str, Any]:
    """What ranks measured, in order of step and rank; ``after``: the last page's ``next``."""
    cursor = _CURSOR.fullmatch(after) if after else None
    if after and cursor is None:
        raise Problem(422, "invalid-request", f"query.after: {after!r}: wants STEP.RANK")
    begin = (0, -1) if cursor is None else (int(cursor[1]), int(cursor[2]))
    with service.store.reading() as connection:
        known(get(connection, JobOutline, job), f"job {job}")
        measured = measurements_page(connection, job, begin, limit + 1)
    shown = measured[:limit]
    items = [{"step": step, "rank": rank, "measured_ms": ms} for step, rank, ms in shown]
    following = f"{shown[-1][0]}.{shown[-1][1]}" if len(measured) > limit else None
    return {"items": items, "next": following}


def _progress(connection: Connection, job: JobOutline) -> dict[str, Any]:
    last_steps = last_acknowledged(connection, job.id, job.world_size)
    slowest = min(last_steps)
    return {
        **columns(job),
        "slowest": slowest,
        "fastest": max(last_steps),
        "last_planned_step": last_planned(connection, job.id),
        "ahead": planned_beyond(connection, job.id, slowest),
    }


def _step(step: PlannedStep, summary: PlanSummary, last_steps: list[int]) -> dict[str, Any]:
    return {
        "step": step.step,
        "predicted_ms": summary.predicted_ms,
        "lower_bound_ms": summary.lower_bound_ms,
        "gap": summary.gap,
        "planning_ms": step.planning_ms,
        "tokens": summary.tokens,
        "sequences": summary.sequences,
        "strategy": summary.strategy,
        "measured_ms": step.measured_ms,
        "ranks_measured": step.ranks_measured,
        "ranks_acknowledged": sum(1 for last in last_steps if last >= step.step),
    }
