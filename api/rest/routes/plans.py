"""What ranks ask: plans and their views, acknowledgements, measured times."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.live.ack_writer import Acknowledged, AckQueue, PlannedSteps
from seqplan.api.rest.live.plan_waiters import Board
from seqplan.api.rest.middleware.direct_plans import LONGEST_WAIT_S, answer
from seqplan.api.rest.wire.fields import Milliseconds, Natural, Step
from seqplan.api.rest.wire.idempotency import once
from seqplan.api.service.plan_bytes import ReadyPlan
from seqplan.api.service.service import Service
from seqplan.api.store import jobs
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.explain import explain

Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the plan")]

_Responses = dict[int | str, dict[str, Any]]
_NOT_CHANGED: _Responses = {304: {"description": "As If-None-Match says"}}
_NOT_YET: _Responses = {204: {"description": "Not planned yet"}}


class Ack(BaseModel):
    """A rank has done a step by the plan with this digest, and what it took."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    digest: str | None
    measured_ms: Milliseconds | None = None


class Acks(BaseModel):
    """Several ranks have done a step; ``measured_ms``: one figure, or null, for each of them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    ranks: Annotated[list[Natural], Field(min_length=1)]
    digest: str | None
    measured_ms: list[Milliseconds | None] | None = None


class Measurement(BaseModel):
    """What a step took on a rank."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    measured_ms: Milliseconds


def plan_routes(service: Service) -> APIRouter:
    """The routes below ``/v1/jobs/{job}`` that concern steps."""
    routes = APIRouter(prefix="/v1/jobs/{job}", tags=["plans"])

    async def planned(request: Request, job: str, step: int, wait: float) -> ReadyPlan | None:
        board: Board = request.app.state.board
        return await board.plan(job, step, wait)

    def sent(request: Request, ready: ReadyPlan | None, rank: int | None) -> Response:
        status, headers, body = answer(ready, rank, request.scope["headers"])
        response = Response(body, status)
        response.raw_headers = headers
        return response

    # PlanAnswers handles these two first; here is what it leaves, and their description.
    @routes.get("/plans/{step}", responses=_NOT_CHANGED | _NOT_YET)
    async def plan(request: Request, job: str, step: Step, wait: Wait = 0) -> Response:
        """The plan; 204 not yet, 410 after the last step, 424 when planning failed."""
        return sent(request, await planned(request, job, step, wait), None)

    @routes.get("/plans/{step}/ranks/{rank}", responses=_NOT_CHANGED | _NOT_YET)
    async def view(request: Request, job: str, step: Step, rank: Step, wait: Wait = 0) -> Response:
        """One rank's view of the plan; statuses as for the plan."""
        return sent(request, await planned(request, job, step, wait), rank)

    @routes.get("/plans/{step}/explain", response_class=PlainTextResponse, responses=_NOT_YET)
    async def explained(request: Request, job: str, step: Step) -> Response:
        """Why the step takes as long as it does, as text."""
        ready = await planned(request, job, step, 0)
        if ready is None:
            return Response(status_code=204)
        text = await run_in_threadpool(explain, ready.plan)
        return PlainTextResponse(text + "\n")

    @routes.get("/plans/{step}/simulate", responses=_NOT_YET)
    async def simulated(request: Request, job: str, step: Step) -> Response:
        """The 1F1B simulation of the step beside its prediction and bound (ms)."""
        ready = await planned(request, job, step, 0)
        if ready is None:
            return Response(status_code=204)
        ready_plan = ready.plan
        simulated_ms = await run_in_threadpool(simulate_plan_ms, ready_plan)
        figures = {
            "step": step,
            "simulated_ms": simulated_ms,
            "predicted_ms": ready_plan.predicted_ms,
            "lower_bound_ms": ready_plan.lower_bound_ms,
            "gap": ready_plan.gap,
        }
        return JSONResponse(figures)

    @routes.post("/acks", status_code=200)
    async def ack(request: Request, job: str, body: Ack) -> Response:
        """A rank has done a step. Saying it again changes nothing, with or without a key."""
        acks: AckQueue = request.app.state.acks
        await acks.put([Acknowledged(job, body.step, body.rank, body.digest, body.measured_ms)])
        return JSONResponse({"step": body.step, "rank": body.rank})

    @routes.post("/acks/many", status_code=200)
    async def ack_many(request: Request, job: str, body: Acks) -> Response:
        """Several ranks have done a step: all of them are kept, or none."""
        times = body.measured_ms or [None] * len(body.ranks)
        if len(times) != len(body.ranks):
            raise ValueError(
                f"body.measured_ms: has {len(times)} figures for {len(body.ranks)} ranks"
            )
        acks: AckQueue = request.app.state.acks
        await acks.put(
            [
                Acknowledged(job, body.step, rank, body.digest, measured_ms)
                for rank, measured_ms in zip(body.ranks, times, strict=True)
            ]
        )
        return JSONResponse({"step": body.step, "ranks": body.ranks})

    @routes.post("/measurements", status_code=200)
    def measurement(request: Request, job: str, body: Measurement) -> Response:
        """What a step took on a rank (ms); a later figure replaces an earlier one."""
        said = Acknowledged(job, body.step, body.rank, None, body.measured_ms)

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            if problem := PlannedSteps(connection).problem(said):
                raise problem
            jobs.add_measurements(connection, [{"job": job, **body.model_dump()}])
            return 200, body.model_dump()

        return once(service, request, body.model_dump_json(), effect)

    return routes
