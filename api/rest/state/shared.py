"""What the handlers of an application share, as their parameters: ``service: ServiceOf``.

It is put in the application's state by ``app``. The dependency is async as it only looks it up: a
sync one would take a thread for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response

from seqplan.api.rest.state.ack_writer import AckQueue
from seqplan.api.rest.state.metrics import Metrics
from seqplan.api.rest.state.plan_queries import PlanQueries
from seqplan.api.rest.state.plan_waiters import PlanWaiters
from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service


def _depend(name: str) -> Any:
    """Make the dependency on a part of the application's state."""

    async def look_up(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(look_up)


ServiceOf = Annotated[Service, _depend("service")]
SummariesOf = Annotated[PlanSummaries, _depend("summaries")]
WatchOf = Annotated[CalibrationWatch, _depend("watch")]
MetricsOf = Annotated[Metrics, _depend("metrics")]
WaitersOf = Annotated[PlanWaiters, _depend("waiters")]
QueriesOf = Annotated[PlanQueries, _depend("queries")]
AcksOf = Annotated[AckQueue, _depend("acks")]


def read_off_loop(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Run a handler, and write its answer, in one of the few threads for readers.

    The handler has the parameter ``service``.
    """

    @wraps(handler)
    async def read(**arguments: Any) -> Response:
        service: Service = arguments["service"]
        work = partial(_answer, handler, arguments)
        return await run_sync(work, limiter=service.readers)

    return read


def _answer(handler: Callable[..., Any], arguments: dict[str, Any]) -> Response:
    answer = handler(**arguments)
    return answer if isinstance(answer, Response) else JSONResponse(answer)
