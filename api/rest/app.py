"""The application: routes, errors and what a request passes before them, around one service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.middleware.body_limit import BodyLimit, NoNul
from seqplan.api.rest.middleware.dashboard import Dashboard
from seqplan.api.rest.middleware.direct_acks import DirectAcks
from seqplan.api.rest.middleware.direct_plans import Head, PlanAnswers
from seqplan.api.rest.middleware.request_metrics import Figures
from seqplan.api.rest.middleware.shutdown import Ending
from seqplan.api.rest.middleware.tokens import Access, RateLimit, Tokens
from seqplan.api.rest.openapi import describe
from seqplan.api.rest.payloads import problems
from seqplan.api.rest.payloads.parameters import check_query
from seqplan.api.rest.routes import (
    acknowledgements,
    jobs,
    lengths,
    plan_queries,
    plans,
    probes,
    profiles,
    progress,
    proposals,
)
from seqplan.api.rest.state.ack_writer import AckQueue
from seqplan.api.rest.state.metrics import Metrics
from seqplan.api.rest.state.plan_queries import PlanQueries
from seqplan.api.rest.state.plan_waiters import PlanWaiters
from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service
from seqplan.plans.version import VERSION

_RESOURCES = (
    probes,
    profiles,
    lengths,
    proposals,
    plan_queries,
    jobs,
    plans,
    acknowledgements,
    progress,
)
"""In the order in which the OpenAPI document lists them."""


def make_app(service: Service, access: Access) -> FastAPI:
    """Make the REST interface of a service, which starts and stops with it."""
    app = FastAPI(
        title="seqplan",
        version=VERSION,
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host of the proxy's request
        lifespan=_lifespan,
        # The service has metrics; the framework's read the environment at each request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    # What handlers share; see ``state/shared``.
    app.state.service = service
    # The framework's list has the routers, or their routes, as its release likes.
    app.state.every_route = [route for resource in _RESOURCES for route in resource.routes.routes]
    app.state.summaries = PlanSummaries()
    app.state.watch = CalibrationWatch(service.store, app.state.summaries)
    app.state.metrics = Metrics(service, app.state.watch)
    problems.install(app)
    describe(app)
    for resource in _RESOURCES:
        # Whoever probes may add a query, to pass caches.
        checks = [] if resource is probes else [Depends(check_query)]
        app.include_router(resource.routes, dependencies=checks)
    # The one added last runs first.
    app.add_middleware(Head)
    app.add_middleware(NoNul)
    app.add_middleware(BodyLimit, limits=service.limits)
    # What ranks request needs none of the checks above.
    app.add_middleware(PlanAnswers, waiters=lambda: app.state.waiters)
    app.add_middleware(DirectAcks, acks=lambda: app.state.acks)  # short ones only
    app.add_middleware(RateLimit, rate=service.limits.requests_a_second)
    app.add_middleware(Tokens, store=service.store, access=access)
    app.add_middleware(Figures, counts=service.counts, answered=app.state.metrics.record_answer)
    app.add_middleware(Dashboard)
    app.add_middleware(Ending)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    watch: CalibrationWatch = app.state.watch
    # These three belong to the event loop, which runs by now.
    app.state.waiters = PlanWaiters(service, app.state.summaries)
    app.state.acks = AckQueue(service)
    app.state.queries = queries = PlanQueries(service)
    service.start(app.state.waiters)
    try:
        watch.start()
        try:
            yield
        finally:
            await run_in_threadpool(watch.stop)
    finally:
        await run_in_threadpool(queries.stop)
        service.stop()
