"""Reports of ranks: a step is done, and its time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.bodies import Ack, Acks, MeasurementRequest
from seqplan.api.rest.payloads.idempotency import Done, once
from seqplan.api.rest.payloads.json_bodies import json_body
from seqplan.api.rest.state.ack_writer import Acknowledged, PlannedSteps
from seqplan.api.rest.state.shared import AcksOf, ServiceOf
from seqplan.api.store.tables.measurements import MeasurementRow, add_measurements
from seqplan.plans import service_routes

routes = APIRouter(tags=["plans"])


OneAck = Annotated[Ack, Depends(json_body(Ack))]


@routes.post(service_routes.ACKS, **answers.describe(answers.AcknowledgedResponse, body=Ack))
async def acknowledge(acks: AcksOf, job: str, body: OneAck) -> Response:
    """A rank has done a step. Saying it again changes nothing, with or without a key."""
    await acks.put([Acknowledged(job, body.step, body.rank, body.digest, body.measured_ms)])
    return JSONResponse({"step": body.step, "rank": body.rank})


ManyAcks = Annotated[Acks, Depends(json_body(Acks))]


@routes.post(service_routes.ACKS_MANY, **answers.describe(answers.AcknowledgedAll, body=Acks))
async def acknowledge_many(acks: AcksOf, job: str, body: ManyAcks) -> Response:
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


Measurement = Annotated[MeasurementRequest, Depends(json_body(MeasurementRequest))]


@routes.post(
    service_routes.MEASUREMENTS, **answers.describe(answers.MeasuredRank, body=MeasurementRequest)
)
def add_measurement(service: ServiceOf, request: Request, job: str, body: Measurement) -> Response:
    """What a step took on a rank (ms); a later figure replaces an earlier one."""
    acknowledged = Acknowledged(job, body.step, body.rank, None, body.measured_ms)

    def effect(connection: Connection) -> Done:
        if problem := PlannedSteps(connection).problem(acknowledged):
            raise problem
        row = MeasurementRow(job, body.step, body.rank, body.measured_ms)
        add_measurements(connection, [row])
        return Done(200, body.model_dump())

    return once(service, request, body.model_dump_json(), effect)
