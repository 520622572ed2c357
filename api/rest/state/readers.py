"""Handlers that read for people: a few at a time, so that ranks do not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from anyio.to_thread import run_sync
from fastapi.responses import JSONResponse, Response

from seqplan.api.service.service import Service


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
