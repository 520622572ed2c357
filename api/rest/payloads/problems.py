"""One shape of every error: problem+json (RFC 9457)."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import Connection
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, InUse, RowDamaged, StoreUnavailable
from seqplan.api.store.rows import AnyRow, JobRow, ListedLengths, get
from seqplan.api.store.store import Store
from seqplan.plans.format.decode import PlanError

_log = logging.getLogger("seqplan.requests")

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""A disk in trouble, which may pass: full, over a quota or limit, failing, read-only."""

TYPES = "urn:seqplan:problem:"

Named = TypeVar("Named")
Respond = Callable[[Request, Any], JSONResponse]


class Problem(Exception):
    """An answer that is an error; ``kind`` is the end of its type."""

    def __init__(self, status: int, kind: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.more = status, kind, detail, more


def problem(
    status: int, kind: str, detail: str, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    """Make the response of a problem; ``more``: extension members."""
    title = kind.replace("-", " ").capitalize()
    body = {"type": TYPES + kind, "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def not_found(subject: str) -> Problem:
    """Make a 404 for something named in the path."""
    return Problem(404, "not-found", f"there is no {subject}")


def rank_lost(rank: int) -> Problem:
    """Make a 409 for a rank that the job is planned without."""
    why = f"rank {rank} is lost: the job is planned without it. Begin a job with it"
    return Problem(409, "rank-lost", why, rank=rank)


def require_found(row: Named | None, subject: str) -> Named:
    """Return the row that the path names; ``not_found`` if there is none."""
    if row is None:
        raise not_found(subject)
    return row


def require_row(source: Connection | Store, kind: type[AnyRow], key: str) -> AnyRow:
    """Read the row that the path names, of a store in a transaction; ``not_found``."""
    if isinstance(source, Store):
        with source.reading() as connection:
            return require_row(connection, kind, key)
    noun = "lengths" if issubclass(kind, ListedLengths) else kind.table.name.removesuffix("s")
    return require_found(get(source, kind, key), f"{noun} {key}")


def make_closing_response(error: Problem) -> JSONResponse:
    """Make the answer to a request whose body is not read: the connection ends with it."""
    more = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.status in (429, 503):
        more["Retry-After"] = "1"
    return problem(error.status, error.kind, error.detail, {**more, "Connection": "close"})


def store_unavailable(error: Exception) -> JSONResponse:
    """Make the 503 of a store that cannot be reached now."""
    return problem(503, "store-unavailable", str(error), {"Retry-After": "1"})


def install(app: FastAPI) -> None:
    """Have every error of the application answered as a problem."""
    for kind, respond in _RESPONSES.items():
        app.add_exception_handler(kind, _handle(respond))


def _handle(respond: Respond) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def handle(request: Request, error: Exception) -> JSONResponse:
        return respond(request, error)  # at once: a sync handler would take a thread

    return handle


def answer_of(error: Problem) -> JSONResponse:
    """Make the answer to a request whose body was read."""
    more = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    return problem(error.status, error.kind, error.detail, more, **error.more)


def _invalid(error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    place = ""
    for part in first["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    value, detail = first.get("input"), first["msg"]
    if first["type"] == "extra_forbidden":
        detail = "is no field of this request. Leave it out"
    elif isinstance(value, str | int | float):
        detail = f"{detail}, not {value!r:.60}"
    return problem(422, "invalid-request", f"{place.lstrip('.')}: {detail}")


def _http(request: Request, error: HTTPException) -> JSONResponse:
    kinds = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
    detail = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers) if error.headers else None
    if error.status_code == 405:
        headers = {"Allow": ", ".join(_allow_methods(request))}
    kind = kinds.get(error.status_code, "rejected")
    return problem(error.status_code, kind, detail, headers)


def _value(error: Any) -> JSONResponse:
    return problem(422, "invalid-request", " ".join(str(error).split()))


def _row_damaged(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return problem(500, "damaged", str(error))


def _disk(error: OSError) -> JSONResponse:
    reason = error.strerror or str(error)
    if error.errno in _DISK:
        return problem(503, "store-unavailable", reason, {"Retry-After": "1"})
    return problem(500, "failure", reason)


def _broken_off(request: Request, _: Exception) -> JSONResponse:
    _log.warning("%s %s: broken off within the body", request.method, request.url.path)
    return problem(400, "broken-off", "the body was broken off")  # nobody receives it


def _failure(error: Exception) -> JSONResponse:
    return problem(500, "failure", f"{type(error).__name__}; the service's log has the rest")


_RESPONSES: dict[type[Exception], Respond] = {
    Problem: lambda _, error: answer_of(error),
    RequestValidationError: lambda _, error: _invalid(error),
    HTTPException: _http,
    PlanError: lambda _, error: _value(error),
    ValueError: lambda _, error: _value(error),
    StoreUnavailable: lambda _, error: store_unavailable(error),
    InUse: lambda _, error: problem(409, "in-use", str(error)),
    ArrayMissing: lambda _, error: problem(409, "file-missing", str(error)),
    ArrayDamaged: lambda _, error: problem(409, "file-damaged", str(error)),
    RowDamaged: _row_damaged,
    OSError: lambda _, error: _disk(error),
    DataError: lambda _, error: _value(error.orig),  # as NUL in PostgreSQL
    ClientDisconnect: _broken_off,
    Exception: lambda _, error: _failure(error),
}
"""By kind of error; the nearest base of an error counts."""


def _allow_methods(request: Request) -> list[str]:
    """Return the methods of the request's path, which several routes may share."""
    by_path: dict[str, set[str]] = {}
    for route in request.app.state.every_route:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods = by_path.setdefault(route.path, set())
            methods.update(route.methods or ())
            if "GET" in methods:
                methods.add("HEAD")
    # /proposals/documents is also a /proposals/{proposal}: the one with fewer names is meant.
    return sorted(by_path[min(by_path, key=lambda path: path.count("{"))]) if by_path else []


def before_first_step(row: JobRow, step: int) -> Problem:
    """Make a 404 for a step before a continuing job begins."""
    return Problem(
        404,
        "before-first-step",
        f"job {row.id} begins with step {row.first_step}, as it continues job "
        f"{row.continues}; step {step} is of that job",
        first_step=row.first_step,
        continues=row.continues,
    )
