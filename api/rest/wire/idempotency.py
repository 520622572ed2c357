"""POST with an Idempotency-Key: done once, however often it is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy import Connection

from seqplan.api.rest.wire.problems import Problem
from seqplan.api.service.service import Service
from seqplan.api.store.tables.answers import Answer, earlier_answer, keep_answer

Effect = Callable[[Connection], tuple[int, dict[str, Any]]]

_LONGEST_KEY = 255


def once(service: Service, request: Request, content: str, effect: Effect) -> Response:
    """Run ``effect`` in a transaction together with keeping its answer.

    ``content``: what was asked, to tell a repetition from another request under the same key.
    """
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise Problem(422, "invalid-request", f"Idempotency-Key: wants 1 to {_LONGEST_KEY} signs")
    digest = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
    path = request.url.path
    with service.store.writing() as connection:
        earlier = None if key is None else earlier_answer(connection, path, key)
        if earlier is not None and earlier.request != digest:
            raise Problem(
                422, "key-reused", f"Idempotency-Key {key!r} came with another body before"
            )
        if earlier is not None:
            answer = earlier
        else:
            status, body = effect(connection)
            answer = Answer(digest, status, json.dumps(body, separators=(",", ":")))
            if key is not None:
                keep_answer(connection, path, key, answer)
    return Response(answer.body, answer.status, media_type="application/json")
