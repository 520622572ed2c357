"""How a job is doing: its steps, what they took, whether its profile holds, one step in time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.wire.problems import Problem, not_found
from seqplan.api.service.drift_watch import MOST_POINTS, WINDOW, DriftWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service
from seqplan.api.store import jobs, progress, schema
from seqplan.api.store.catalogue import get, page
from seqplan.planner.simulation.timeline import plan_timeline
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.plan import Plan
from seqplan.profiler.fit.drift import Drift

After = Annotated[int, Query(ge=-1, le=MAX_INTEGER)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Jobs = Annotated[int, Query(ge=1, le=200)]
Rows = Annotated[int, Query(ge=1, le=10_000)]
Window = Annotated[int, Query(ge=1, le=1000, description="measured steps to look back on")]
Points = Annotated[int, Query(ge=0, le=MOST_POINTS, description="of each scheme, the latest")]
Step = Annotated[int, Path(ge=0, le=MAX_INTEGER)]

_SHOWN = ["id", "state", "world_size", "look_ahead", "last_step", "failed_step", "error"]
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_DIGITS = 3
"""Decimals of a timeline: microseconds, so that a large step is a small answer."""


def progress_routes(service: Service, summaries: PlanSummaries, watch: DriftWatch) -> APIRouter:
    """``/v1/progress`` and the routes of a job that tell of its progress; all of them only read.

    ``watch`` looks by itself for as long as the application runs.
    """

    @asynccontextmanager
    async def watching(_: Any) -> AsyncIterator[None]:
        watch.start()
        try:
            yield
        finally:
            await run_in_threadpool(watch.stop)

    routes = APIRouter(tags=["progress"], lifespan=watching)
    below = "/v1/jobs/{job}"

    def row_of(connection: Connection, job: str) -> dict[str, Any]:
        row = get(connection, schema.jobs, job)
        if row is None:
            raise not_found(f"job {job}")
        return row

    def how_far(connection: Connection, row: dict[str, Any]) -> dict[str, Any]:
        job = row["id"]
        done = progress.last_acknowledged(connection, job, row["world_size"])
        slowest = min(done)
        return {
            **row,
            "slowest": slowest,
            "fastest": max(done),
            "last_planned_step": jobs.last_planned(connection, job),
            "ahead": progress.planned_beyond(connection, job, slowest),
        }

    @routes.get("/v1/progress")
    def everything(cursor: str = "", limit: Jobs = 50) -> dict[str, Any]:
        """Jobs in order of id, each with how far it is.

        ``slowest``: the last step that every rank has acknowledged, −1 for none;
        ``ahead``: planned steps beyond it.
        """
        with service.store.reading() as connection:
            rows, following = page(connection, schema.jobs, _SHOWN, cursor, limit)
            items = [how_far(connection, row) for row in rows]
        return {"items": items, "next": following}

    @routes.get(below + "/progress")
    def one(job: str) -> dict[str, Any]:
        """How far one job is, as in ``/v1/progress``."""
        with service.store.reading() as connection:
            row = row_of(connection, job)
            return how_far(connection, {name: row[name] for name in _SHOWN})

    @routes.get(below + "/steps")
    def steps(job: str, after: After = -1, limit: Limit = 200) -> dict[str, Any]:
        """Planned steps beyond ``after``: what was predicted, what planning and running took.

        Times in ms; ``measured_ms``: of the slowest of ``ranks_measured`` ranks.
        """
        with service.store.reading() as connection:
            row = row_of(connection, job)
            found = progress.planned_page(connection, job, after, limit + 1)
            shown = found[:limit]
            known = summaries.of(
                {each.step: each.digest for each in shown},
                lambda missing: progress.plan_lines(connection, job, missing),
            )
            done = progress.last_acknowledged(connection, job, row["world_size"])
        items = [
            {
                "step": each.step,
                "predicted_ms": known[each.step].predicted_ms,
                "lower_bound_ms": known[each.step].lower_bound_ms,
                "gap": known[each.step].gap,
                "planning_ms": each.planning_ms,
                "tokens": known[each.step].tokens,
                "sequences": known[each.step].sequences,
                "strategy": known[each.step].strategy,
                "measured_ms": each.measured_ms,
                "ranks_measured": each.ranks_measured,
                "ranks_acknowledged": sum(1 for step in done if step >= each.step),
            }
            for each in shown
        ]
        return {"items": items, "next": shown[-1].step if len(found) > limit else None}

    @routes.get(below + "/measurements")
    def measurements(job: str, after: str = "", limit: Rows = 1000) -> dict[str, Any]:
        """What ranks measured, in order of step and rank; ``after``: the last page's ``next``."""
        cursor = _CURSOR.fullmatch(after) if after else None
        if after and cursor is None:
            raise Problem(422, "invalid-request", f"query.after: {after!r}: wants STEP.RANK")
        begin = (0, -1) if cursor is None else (int(cursor[1]), int(cursor[2]))
        with service.store.reading() as connection:
            row_of(connection, job)
            found = progress.measurements_page(connection, job, begin, limit + 1)
        shown = found[:limit]
        items = [{"step": s, "rank": r, "measured_ms": ms} for s, r, ms in shown]
        following = f"{shown[-1][0]}.{shown[-1][1]}" if len(found) > limit else None
        return {"items": items, "next": following}

    @routes.get(below + "/drift")
    def drift(job: str, steps: Window = WINDOW, points: Points = 0) -> dict[str, Any]:
        """Predicted and measured times by scheme over the last measured steps; ratios, not %.

        ``bias`` and ``error.recent`` are medians over the latest pipelines; where ``recent`` has
        left ``limit``, what the profile states, ``warning`` is true and ``message`` says so.
        ``points``: how many [predicted ms, measured ms] of each scheme to add.
        """
        with service.store.reading() as connection:
            row_of(connection, job)
            found = watch.judge(connection, job, steps)
        shown = [
            {**_scheme(each), "points": found.points.get(each.scheme, [])[-points:]}
            if points
            else _scheme(each)
            for each in found.schemes
        ]
        return {
            "job": job,
            "profile": found.profile,
            "steps": {"first": found.first, "last": found.last, "measured": found.steps},
            "pipelines": {
                "all": found.pipelines,
                "measurable": found.measurable,
                "measured": found.measured,
            },
            "schemes": shown,
            "warning": any(each["warning"] for each in shown),
        }

    @routes.get(below + "/plans/{step}/timeline")
    def timeline(request: Request, job: str, step: Step) -> Response:
        """When each pass of each micro-batch runs by the 1F1B simulation, ms from the step's start.

        ``stages[s]``: passes of stage s as [F or B, micro-batch, start, end].
        """
        with service.store.reading() as connection:
            row = row_of(connection, job)
            stored = jobs.get_plan(connection, job, step)
            if stored is None:
                raise not_found(f"plan of step {step} in job {job}")
            tag = f'"timeline-{stored.digest}"'
            if request.headers.get("If-None-Match") == tag:
                return Response(status_code=304, headers={"ETag": tag})
            profile = watch.profile(connection, row["proposal"])
        plan = from_json(stored.line)
        return JSONResponse(_timeline(plan, profile.forward_fraction), headers={"ETag": tag})

    return routes


def _scheme(each: Drift) -> dict[str, Any]:
    stated = each.stated
    return {
        "scheme": str(each.scheme),
        "pipelines": each.pipelines,
        "error": {"median": each.median, "p90": each.p90, "recent": each.recent},
        "bias": each.bias,
        "stated": None
        if stated is None
        else {"samples": stated.samples, "median": stated.median, "p90": stated.p90},
        "limit": each.limit,
        "limit_assumed": stated is None,
        "warning": each.warning is not None,
        "message": each.warning,
    }


def _timeline(plan: Plan, forward_fraction: float) -> dict[str, Any]:
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
                "round": pipeline.round,
                "start_ms": round(placed.start_ms, _DIGITS),
                "end_ms": round(placed.end_ms, _DIGITS),
                "micro_batches": [
                    {
                        "tokens": micro.tokens,
                        "sequences": len(micro.sequences),
                        "longest": max((plan.lengths[at] for at in micro.sequences), default=0),
                        "cost_ms": micro.cost_ms,
                    }
                    for micro in pipeline.micro_batches
                ],
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
