"""One planned step in time: when each pass of each micro-batch runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from seqplan.api.rest.payloads.answers import Timeline, answers
from seqplan.api.rest.payloads.parameters import StepOfPlan
from seqplan.api.rest.payloads.problems import require_found
from seqplan.api.rest.state.readers import read_off_loop
from seqplan.api.rest.state.shared import ServiceOf, WatchOf
from seqplan.api.service.plan_bytes import read_stored
from seqplan.api.store.rows import ListedJob, get
from seqplan.api.store.tables.plans import get_plan
from seqplan.planner.simulation.one_f_one_b import ForwardFraction
from seqplan.planner.simulation.timeline import plan_timeline
from seqplan.plans import service_routes
from seqplan.plans.plan import MicroBatch, Plan
from seqplan.plans.recomputation import write_mode

routes = APIRouter(tags=["progress"])

_DIGITS = 3
"""Decimals of a timeline: microseconds, so that a large step is a small answer."""


@routes.get(service_routes.TIMELINE, **answers(Timeline))
@read_off_loop
def get_timeline(
    service: ServiceOf, watch: WatchOf, request: Request, job: str, step: StepOfPlan
) -> Response:
    """Return the simulated 1F1B times of each pass, ms from the step's start.

    ``stages[s]``: passes of stage s as [F or B, micro-batch, start, end].
    """
    with service.store.reading() as connection:
        row = require_found(get(connection, ListedJob, job), f"job {job}")
        stored = require_found(get_plan(connection, job, step), f"plan of step {step} in job {job}")
        tag = f'"timeline-{stored.digest}"'
        if request.headers.get("If-None-Match") == tag:
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
