"""Probes, metrics and a page of the routes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from sqlalchemy import func, select

from seqplan.api.service import Service
from seqplan.api.store import schema
from seqplan.api.store.jobs import look_ahead, unfinished


def health_routes(service: Service) -> APIRouter:
    """``/healthz``, ``/readyz``, ``/metrics`` and ``/docs``."""
    routes = APIRouter()

    @routes.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process answers."""
        return "ok\n"

    @routes.get("/readyz", response_class=PlainTextResponse)
    def readyz() -> str:
        """The store answers, too; 503 otherwise."""
        with service.store.reading() as connection:
            connection.execute(select(schema.version.c.version))
        return "ready\n"

    @routes.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        """Figures in the Prometheus text format."""
        return "\n".join(_metrics(service)) + "\n"

    @routes.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs(request: Request) -> str:
        """The routes on one page that loads nothing; /openapi.json has the details."""
        rows = []
        for path, methods in request.app.openapi()["paths"].items():
            for method, about in methods.items():
                what = escape(about.get("description", ""))
                call = f"<code>{method.upper()} {escape(path)}</code>"
                rows.append(f"<tr><td>{call}</td><td>{what}</td></tr>")
        return (
            '<!doctype html><meta charset="utf-8"><title>seqplan</title><h1>seqplan</h1>'
            '<p>The interface in full: <a href="/openapi.json">openapi.json</a>.</p>'
            f"<table>{''.join(rows)}</table>"
        )

    return routes


def _metrics(service: Service) -> Iterator[str]:
    with service.store.reading() as connection:
        states = select(schema.jobs.c.state, func.count()).group_by(schema.jobs.c.state)
        jobs = {str(state): int(count) for state, count in connection.execute(states)}
        summed = select(func.count(), func.coalesce(func.sum(schema.plans.c.planning_ms), 0.0))
        plans, planning_ms = connection.execute(summed).one()
        ahead = [(row["id"], look_ahead(connection, row)) for row in unfinished(connection)]
    yield "# HELP seqplan_jobs Jobs of the store by state."
    yield "# TYPE seqplan_jobs gauge"
    for state in ("planning", "planned", "failed"):
        yield f'seqplan_jobs{{state="{state}"}} {jobs.get(state, 0)}'
    yield "# HELP seqplan_planning_seconds Time that planning the steps of the store took."
    yield "# TYPE seqplan_planning_seconds summary"
    yield f"seqplan_planning_seconds_sum {planning_ms / 1000:.6f}"
    yield f"seqplan_planning_seconds_count {plans}"
    yield "# HELP seqplan_acknowledgements_total Acknowledgements since the start."
    yield "# TYPE seqplan_acknowledgements_total counter"
    yield f"seqplan_acknowledgements_total {service.counts['acknowledgements']}"
    yield "# HELP seqplan_publications_total Plans published by this service since the start."
    yield "# TYPE seqplan_publications_total counter"
    yield f"seqplan_publications_total {service.counts['publications']}"
    yield "# HELP seqplan_look_ahead_steps Steps planned beyond the slowest rank, by job."
    yield "# TYPE seqplan_look_ahead_steps gauge"
    for job, steps in ahead:
        yield f'seqplan_look_ahead_steps{{job="{job}"}} {steps}'
    yield "# HELP seqplan_requests_total Requests answered since the start, by status."
    yield "# TYPE seqplan_requests_total counter"
    for name, count in sorted(service.counts.items()):
        if name.startswith("status "):
            yield f'seqplan_requests_total{{status="{name[7:]}"}} {count}'
