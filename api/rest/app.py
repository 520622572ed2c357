"""The application: routes, errors and the guard around one service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from seqplan.api.rest.live.ack_writer import AckQueue
from seqplan.api.rest.live.metrics import Metrics
from seqplan.api.rest.live.plan_waiters import Board
from seqplan.api.rest.middleware.dashboard import Dashboard
from seqplan.api.rest.middleware.direct_plans import PlanAnswers
from seqplan.api.rest.middleware.guard import Guard
from seqplan.api.rest.openapi import describe
from seqplan.api.rest.routes.catalogue import catalogue_routes
from seqplan.api.rest.routes.jobs import job_routes
from seqplan.api.rest.routes.plans import plan_routes
from seqplan.api.rest.routes.probes import health_routes
from seqplan.api.rest.routes.progress import progress_routes
from seqplan.api.rest.wire import problems
from seqplan.api.service.drift_watch import DriftWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service
from seqplan.plans.version import VERSION


def make_app(service: Service) -> FastAPI:
    """The REST interface of a service, which starts and stops with it."""

    summaries = PlanSummaries()
    watch = DriftWatch(service.store, summaries)
    figures = Metrics(service, watch)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.board = Board(service, summaries)
        app.state.acks = AckQueue(service)
        service.start()
        try:
            yield
        finally:
            service.stop()

    app = FastAPI(
        title="seqplan", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    problems.install(app)
    describe(app)
    app.include_router(health_routes(service, figures))
    app.include_router(catalogue_routes(service))
    app.include_router(job_routes(service))
    app.include_router(plan_routes(service))
    app.include_router(progress_routes(service, summaries, watch))
    # The one added last is asked first.
    app.add_middleware(PlanAnswers, board=lambda: app.state.board)
    app.add_middleware(Guard, service=service, answered=figures.answered)
    app.add_middleware(Dashboard)
    return app
