"""Plans and rank views, and what can be read off a plan."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.parameters import Step, Wait
from seqplan.api.rest.payloads.plan_response import answer
from seqplan.api.rest.state.shared import WaitersOf
from seqplan.api.service.plan_summary import ReadyPlan
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans import service_routes
from seqplan.plans.explain import explain

routes = APIRouter(tags=["plans"])

_Responses = dict[int | str, dict[str, Any]]
_NOT_CHANGED: _Responses = {304: {"description": "Not modified since If-None-Match"}}
_DOCUMENT: _Responses = {200: {"model": dict[str, Any]}}
_SIMULATED: _Responses = {200: {"model": answers.Simulated}}
_NOT_YET: _Responses = {204: {"description": "Not planned yet"}}


# PlanAnswers handles these two first; here is what it leaves, and their description.
@routes.get(service_routes.PLAN, responses=_NOT_CHANGED | _NOT_YET | _DOCUMENT)
async def get_plan(
    waiters: WaitersOf, request: Request, job: str, step: Step, wait: Wait = 0
) -> Response:
    """The plan; 204 not yet, 410 after the last step, 424 when planning failed."""
    return _response(request, await waiters.plan(job, step, wait), None)


@routes.get(service_routes.VIEW, responses=_NOT_CHANGED | _NOT_YET | _DOCUMENT)
async def get_view(
    waiters: WaitersOf, request: Request, job: str, step: Step, rank: Step, wait: Wait = 0
) -> Response:
    """One rank's view of the plan; statuses as for the plan."""
    ready = await waiters.plan(job, step, wait)
    if ready is not None:
        ready = await waiters.add_views(job, ready)
    return _response(request, ready, rank)


@routes.get(service_routes.EXPLAIN, response_class=PlainTextResponse, responses=_NOT_YET)
async def explain_step(waiters: WaitersOf, job: str, step: Step) -> Response:
    """Why the step takes as long as it does, as text."""
    ready = await waiters.plan(job, step, 0)
    if ready is None:
        return Response(status_code=204)
    text = await run_in_threadpool(explain, ready.plan)
    return PlainTextResponse(text + "\n")


@routes.get(service_routes.SIMULATE, responses=_NOT_YET | _SIMULATED)
async def simulate_step(waiters: WaitersOf, job: str, step: Step) -> Response:
    """The 1F1B simulation of the step with its prediction and bound (ms)."""
    ready = await waiters.plan(job, step, 0)
    if ready is None:
        return Response(status_code=204)
    plan = ready.plan
    figures = {
        "step": step,
        "simulated_ms": await run_in_threadpool(simulate_plan_ms, plan),
        "predicted_ms": plan.predicted_ms,
        "lower_bound_ms": plan.lower_bound_ms,
        "gap": plan.gap,
    }
    return JSONResponse(figures)


def _response(request: Request, ready: ReadyPlan | None, rank: int | None) -> Response:
    status, headers, body = answer(ready, rank, request.scope["headers"])
    response = Response(body, status)
    response.raw_headers = headers
    return response
