"""What the handlers of an application share, as their parameters: ``service: ServiceOf``.

It is put in the application's state by ``app``. The functions are async as they only look it up: a
sync one would take a thread for each request.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from seqplan.api.rest.state.ack_writer import AckQueue
from seqplan.api.rest.state.metrics import Metrics
from seqplan.api.rest.state.plan_queries import PlanQueries
from seqplan.api.rest.state.plan_waiters import PlanWaiters
from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service


async def service_of(request: Request) -> Service:
    """Return the service that the application stands before."""
    service: Service = request.app.state.service
    return service


async def summaries_of(request: Request) -> PlanSummaries:
    """Return the summaries of plans that are kept."""
    summaries: PlanSummaries = request.app.state.summaries
    return summaries


async def watch_of(request: Request) -> CalibrationWatch:
    """Return the watch over the profiles of the jobs."""
    watch: CalibrationWatch = request.app.state.watch
    return watch


async def metrics_of(request: Request) -> Metrics:
    """Return the figures for Prometheus."""
    metrics: Metrics = request.app.state.metrics
    return metrics


async def waiters_of(request: Request) -> PlanWaiters:
    """Return who waits for which plan."""
    waiters: PlanWaiters = request.app.state.waiters
    return waiters


async def queries_of(request: Request) -> PlanQueries:
    """Return the planners of single batches."""
    queries: PlanQueries = request.app.state.queries
    return queries


async def acks_of(request: Request) -> AckQueue:
    """Return the writer of acknowledgements."""
    acks: AckQueue = request.app.state.acks
    return acks


ServiceOf = Annotated[Service, Depends(service_of)]
SummariesOf = Annotated[PlanSummaries, Depends(summaries_of)]
WatchOf = Annotated[CalibrationWatch, Depends(watch_of)]
MetricsOf = Annotated[Metrics, Depends(metrics_of)]
WaitersOf = Annotated[PlanWaiters, Depends(waiters_of)]
QueriesOf = Annotated[PlanQueries, Depends(queries_of)]
AcksOf = Annotated[AckQueue, Depends(acks_of)]
