"""POST with an Idempotency-Key: done once, however often it is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.service.service import Service
from seqplan.api.store.tables.answers import StoredAnswer, earlier_answer, keep_answer
from seqplan.api.store.tables.jobs import job_key
from seqplan.plans.service_routes import JOBS


class Done(NamedTuple):
    """Status and body of an answer; ``then`` is called after the transaction that it is from."""

    status: int
    body: dict[str, Any]
    then: Callable[[], object] = lambda: None


Effect = Callable[[Connection], Done]

_LONGEST_KEY = 255


def once(
    service: Service, request: Request, content: str, effect: Effect, *, below: str | None = None
) -> Response:
    """Run ``effect`` in a transaction together with keeping its answer.

    ``content``: the request, to distinguish a repetition from another one under the same key.
    ``below``: the path below which the answer's ``id`` is its Location, of repeated ones too.
    """
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise Problem(422, "invalid-request", f"Idempotency-Key: must be 1 to {_LONGEST_KEY} signs")
    digest = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
    with service.store.writing() as connection:
        path = _idempotency_path(connection, request)
        answer = None if key is None else earlier_answer(connection, path, key)
        if answer is not None and answer.request != digest:
            why = f"Idempotency-Key {key!r} came with another body before"
            raise Problem(422, "key-reused", why)
        done = None
        if answer is None:
            done = effect(connection)
            text = json.dumps(done.body, separators=(",", ":"))
            answer = StoredAnswer(digest, done.status, text)
            if key is not None:
                keep_answer(connection, path, key, answer)
    if done is not None:
        done.then()
    response = Response(answer.body, answer.status, media_type="application/json")
    if below is not None:
        response.headers["Location"] = f"{below}/{json.loads(answer.body)['id']}"
    return response


async def upload_document(
    service: Service,
    request: Request,
    below: str,
    keep: Callable[[Connection, str], dict[str, Any]],
) -> Response:
    """Keep the document that is a request's body, once; ``keep`` returns the answer."""
    body = await request.body()
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"body: not UTF-8 ({error.reason})") from None

    def effect(connection: Connection) -> Done:
        return Done(201, keep(connection, text))

    return await run_in_threadpool(once, service, request, text, effect, below=below)


def _idempotency_path(connection: Connection, request: Request) -> str:
    """Return the path that an answer is kept under: below a job, with the job's key for its id.

    So that a later job of the same id is not answered as this one was.
    """
    path, job = request.url.path, request.path_params.get("job")
    key = None if job is None else job_key(connection, job)
    return path if key is None else path.replace(f"{JOBS}/{job}/", f"{JOBS}/{key}/", 1)
