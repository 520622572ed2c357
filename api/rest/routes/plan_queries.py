"""The plan of one batch by a proposal, at once and without a job."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from seqplan.api.rest.middleware.tokens import TOKEN
from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.bodies import PushedBatch
from seqplan.api.rest.payloads.json_bodies import json_body
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.routes.jobs import check_batch
from seqplan.api.rest.state.shared import QueriesOf
from seqplan.planner.errors import Infeasible
from seqplan.plans import service_routes

routes = APIRouter(tags=["plans"])

QueriedBatch = Annotated[PushedBatch, Depends(json_body(PushedBatch))]


@routes.post(service_routes.PLAN_BATCH, **answers.describe(dict[str, Any], body=PushedBatch))
async def plan_batch(
    queries: QueriesOf, request: Request, proposal: str, body: QueriedBatch
) -> Response:
    """Plan one batch by a proposal and return the plan; nothing is kept.

    The same batch has the same plan. Queries take turns by token; 503 if too many wait, 422 if
    no strategy can run the batch.
    """
    name = request.scope.get(TOKEN, "")
    try:
        planned = await queries.plan(proposal, partial(check_batch, body, "body"), name)
    except Infeasible as error:
        raise Problem(422, "infeasible", str(error)) from None
    return Response(
        planned.line, media_type="application/json", headers={"ETag": f'"{planned.digest}"'}
    )
