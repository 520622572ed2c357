"""Probes, metrics and a page of the routes."""

from __future__ import annotations

from html import escape

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from seqplan.api.rest.middleware.dashboard import SECURITY_HEADERS
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.state.shared import MetricsOf, ServiceOf, WatchOf
from seqplan.plans import service_routes

routes = APIRouter()


@routes.get(service_routes.HEALTH, response_class=PlainTextResponse)
async def get_health() -> str:
    """The process answers."""
    return "ok\n"


@routes.get(service_routes.READINESS, response_class=PlainTextResponse)
def get_readiness(service: ServiceOf, watch: WatchOf) -> str:
    """The store can be written to, too, and all planning goes on; 503 otherwise, with the reason.

    It writes at most once a second, however often it is requested.
    """
    service.store.check_writable()
    if faults := service.faults() + watch.faults():
        raise Problem(503, "planning-ended", "; ".join(faults))
    return "ready\n"


@routes.get(service_routes.METRICS, response_class=PlainTextResponse)
def get_metrics(figures: MetricsOf) -> str:
    """Figures in the Prometheus text format."""
    return figures.text()


@routes.get("/docs", include_in_schema=False)
def docs(request: Request) -> Response:
    """The routes on one page that loads nothing; /openapi.json has the details."""
    rows = []
    for path, methods in request.app.openapi()["paths"].items():
        for method, about in methods.items():
            description = escape(about.get("description", ""))
            call = f"<code>{method.upper()} {escape(path)}</code>"
            rows.append(f"<tr><td>{call}</td><td>{description}</td></tr>")
    return HTMLResponse(
        '<!doctype html><meta charset="utf-8"><title>seqplan</title><h1>seqplan</h1>'
        '<p>The interface in full: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<table>{''.join(rows)}</table>",
        headers=SECURITY_HEADERS,
    )
