"""What ranks ask: plans and their views, acknowledgements, measured times."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.board import Board, ReadyPlan
from seqplan.api.rest.once import once
from seqplan.api.rest.problems import Problem, not_found
from seqplan.api.service import Service
from seqplan.api.store import jobs, schema
from seqplan.api.store.catalogue import get
from seqplan.planner.simulate_plan import simulate_plan_ms
from seqplan.plans.decode import MAX_INTEGER
from seqplan.plans.explain import explain

Natural = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Step = Annotated[int, Path(ge=0, le=MAX_INTEGER)]
Wait = Annotated[float, Query(ge=0, le=3600, description="seconds to wait for the plan")]


class Ack(BaseModel):
    """A rank has done a step by the plan with this digest."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    digest: str | None


class Measurement(BaseModel):
    """What a step took on a rank."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    measured_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]


def plan_routes(service: Service) -> APIRouter:
    """The routes below ``/v1/jobs/{job}`` that concern steps."""
    routes = APIRouter(prefix="/v1/jobs/{job}", tags=["plans"])

    async def planned(request: Request, job: str, step: int, wait: float) -> ReadyPlan | None:
        board: Board = request.app.state.board
        return await board.plan(job, step, wait)

    def sent(request: Request, ready: ReadyPlan, body: bytes | str) -> Response:
        tag = f'"{ready.digest}"'
        if request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(body, headers={"ETag": tag}, media_type="application/json")

    @routes.get("/plans/{step}")
    async def plan(request: Request, job: str, step: Step, wait: Wait = 0) -> Response:
        """The plan; 204 not yet, 410 after the last step, 424 when planning failed."""
        ready = await planned(request, job, step, wait)
        return Response(status_code=204) if ready is None else sent(request, ready, ready.line)

    @routes.get("/plans/{step}/ranks/{rank}")
    async def view(request: Request, job: str, step: Step, rank: Step, wait: Wait = 0) -> Response:
        """One rank's view of the plan; statuses as for the plan."""
        ready = await planned(request, job, step, wait)
        if ready is None:
            return Response(status_code=204)
        return sent(request, ready, ready.view(rank))

    @routes.get("/plans/{step}/explain")
    async def explained(request: Request, job: str, step: Step) -> Response:
        """Why the step takes as long as it does, as text."""
        ready = await planned(request, job, step, 0)
        if ready is None:
            return Response(status_code=204)
        text = await run_in_threadpool(explain, ready.plan)
        return Response(text + "\n", media_type="text/plain; charset=utf-8")

    @routes.get("/plans/{step}/simulate")
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

    def planned_step(connection: Connection, job: str, step: int, rank: int) -> jobs.StoredPlan:
        row = get(connection, schema.jobs, job)
        if row is None:
            raise not_found(f"job {job}")
        if rank >= row["world_size"]:
            raise Problem(422, "invalid-request", f"rank: {rank} is not below {row['world_size']}")
        stored = jobs.get_plan(connection, job, step)
        if stored is None:
            known = jobs.planned_steps(connection, job)
            last = known[-1] if known else None
            raise Problem(
                409,
                "not-planned",
                f"step {step} of job {job} has no plan; the last planned is {last}",
                last_step=last,
            )
        return stored

    @routes.post("/acks", status_code=200)
    def ack(job: str, body: Ack) -> Response:
        """A rank has done a step. Saying it again changes nothing, with or without a key."""
        with service.store.writing() as connection:
            stored = planned_step(connection, job, body.step, body.rank)
            if body.digest is not None and body.digest != stored.digest:
                raise Problem(
                    409,
                    "other-plan",
                    f"step {body.step} was planned as {stored.digest}, not {body.digest}",
                )
            jobs.acknowledge(connection, job, body.step, body.rank, stored.digest)
        service.counts["acknowledgements"] += 1
        if planning := service.job(job):
            planning.acknowledged(body.step, body.rank)
        return JSONResponse({"step": body.step, "rank": body.rank})

    @routes.post("/measurements", status_code=200)
    def measurement(request: Request, job: str, body: Measurement) -> Response:
        """What a step took on a rank (ms); a later figure replaces an earlier one."""

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            planned_step(connection, job, body.step, body.rank)
            jobs.add_measurement(connection, job, body.step, body.rank, body.measured_ms)
            return 200, body.model_dump()

        return once(service, request, body.model_dump_json(), effect)

    return routes
