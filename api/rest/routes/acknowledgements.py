"""Reports of ranks: a step is done, and its time."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from sqlalchemy import Connection

from seqplan.api.rest.payloads.answers import AcknowledgedAll, MeasuredRank, answers
from seqplan.api.rest.payloads.answers import AcknowledgedResponse as AnsweredAck
from seqplan.api.rest.payloads.fields import Milliseconds, Natural, Naturals, Text
from seqplan.api.rest.payloads.idempotency import once
from seqplan.api.rest.payloads.large_bodies import describe_body, large_body
from seqplan.api.rest.state.ack_writer import Acknowledged, PlannedSteps
from seqplan.api.rest.state.shared import AcksOf, ServiceOf
from seqplan.api.store.tables.measurements import MeasurementRow, add_measurements
from seqplan.planner.workload import MOST_GPUS

routes = APIRouter(prefix="/v1/jobs/{job}", tags=["plans"])


def _each_once(ranks: list[int]) -> list[int]:
    if len(set(ranks)) != len(ranks):
        again = next(rank for rank, count in Counter(ranks).items() if count > 1)
        raise PydanticCustomError("rank_twice", "names rank {rank} twice", {"rank": again})
    return ranks


class Ack(BaseModel):
    """A rank has done a step by the plan with this digest, and its time."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    digest: Text | None
    measured_ms: Milliseconds | None = None


class Acks(BaseModel):
    """Several ranks have done a step; ``measured_ms``: one figure, or null, for each of them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    ranks: Annotated[
        Naturals, Field(min_length=1, max_length=MOST_GPUS), AfterValidator(_each_once)
    ]
    digest: Text | None
    measured_ms: list[Milliseconds | None] | None = Field(default=None, max_length=MOST_GPUS)


class MeasurementRequest(BaseModel):
    """What a step took on a rank."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    rank: Natural
    measured_ms: Milliseconds


@routes.post("/acks", status_code=200, **answers(AnsweredAck))
async def ack(acks: AcksOf, job: str, body: Ack) -> Response:
    """A rank has done a step. Saying it again changes nothing, with or without a key."""
    await acks.put([Acknowledged(job, body.step, body.rank, body.digest, body.measured_ms)])
    return JSONResponse({"step": body.step, "rank": body.rank})


ManyAcks = Annotated[Acks, Depends(large_body(Acks))]


@routes.post(
    "/acks/many", status_code=200, openapi_extra=describe_body(Acks), **answers(AcknowledgedAll)
)
async def ack_many(acks: AcksOf, job: str, body: ManyAcks) -> Response:
    """Several ranks have done a step: all of them are kept, or none."""
    times = body.measured_ms or [None] * len(body.ranks)
    if len(times) != len(body.ranks):
        raise ValueError(f"body.measured_ms: has {len(times)} figures for {len(body.ranks)} ranks")
    await acks.put(
        [
            Acknowledged(job, body.step, rank, body.digest, measured_ms)
            for rank, measured_ms in zip(body.ranks, times, strict=True)
        ]
    )
    return JSONResponse({"step": body.step, "ranks": body.ranks})


@routes.post("/measurements", status_code=200, **answers(MeasuredRank))
def measurement(
    service: ServiceOf, request: Request, job: str, body: MeasurementRequest
) -> Response:
    """What a step took on a rank (ms); a later figure replaces an earlier one."""
    acknowledged = Acknowledged(job, body.step, body.rank, None, body.measured_ms)

    def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
        if problem := PlannedSteps(connection).problem(acknowledged):
            raise problem
        row = MeasurementRow(job, body.step, body.rank, body.measured_ms)
        add_measurements(connection, [row])
        return 200, body.model_dump()

    return once(service, request, body.model_dump_json(), effect)
