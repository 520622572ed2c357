"""Length data sets: listed, shown, uploaded, removed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.payloads import answers
from seqplan.api.rest.payloads.idempotency import Done, once
from seqplan.api.rest.payloads.pages import read_page
from seqplan.api.rest.payloads.parameters import Limit
from seqplan.api.rest.payloads.problems import Problem, not_found, require_row
from seqplan.api.rest.state.shared import ServiceOf
from seqplan.api.service.service import Service
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import LengthsRow, ListedLengths, columns
from seqplan.api.store.tables.leftovers import UPLOAD_PREFIX
from seqplan.api.store.tables.lengths import (
    histogram_row,
    lengths_path,
    put_lengths,
    remove_lengths,
    write_lengths,
)
from seqplan.costs.lengths import (
    LengthsError,
    SourceOptions,
    UncountedText,
    parse_histogram,
    read_lengths,
)
from seqplan.plans import service_routes

routes = APIRouter(tags=["lengths"])

_SUFFIXES = {"npy": ".npy", "jsonl": ".jsonl", "txt": ".txt", "histogram": ".json"}
Format = Annotated[str, Query(json_schema_extra={"enum": list(_SUFFIXES)})]
BytesPerToken = Annotated[float | None, Query(gt=0, allow_inf_nan=False)]
_COUNT = (
    "Estimate its tokens with bytes_per_token=4 in the query, or count them (seqplan lengths "
    "--tokenizer) and upload that file"
)
_PARAMETERS = {"--tokenizer": "bytes_per_token", "--field": "field"}
_ANSWERED = ("id", "sequences", "tokens", "longest")


@routes.get(service_routes.LENGTHS, **answers.describe(answers.LengthsPage))
def list_lengths(service: ServiceOf, cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
    """Length data sets in order of id."""
    return read_page(service.store, ListedLengths, cursor, limit)


@routes.get(service_routes.LENGTHS_SET, **answers.describe(answers.LengthsResponse))
def get_lengths(service: ServiceOf, lengths: str) -> Response:
    """A data set's figures and histogram: [over, up to, sequences, tokens] a bucket.

    ``kind``: sequences, or histogram if only that is known.
    """
    row = require_row(service.store, LengthsRow, lengths)
    return JSONResponse({**columns(row), "histogram": json.loads(row.histogram)})


@routes.post(
    service_routes.LENGTHS, **answers.describe(answers.NewLengths, 201, body=answers.UPLOADED)
)
async def upload_lengths(
    service: ServiceOf,
    request: Request,
    format: Format = "npy",
    field: str | None = None,
    bytes_per_token: BytesPerToken = None,
) -> Response:
    """Upload lengths, streamed to disk; ``format``: npy, jsonl, txt or histogram.

    ``field``: of jsonl, chosen by its name if not given. Tokens of text and conversations in jsonl
    are estimated from their UTF-8 bytes, at ``bytes_per_token``.
    Same data, same id. A histogram, JSON as [[over, up to, sequences, tokens or nothing], …],
    does for proposals; a job cannot draw from it.
    """
    if format not in _SUFFIXES:
        raise ValueError(f"query.format: {format!r} is none of {', '.join(_SUFFIXES)}")
    if format != "jsonl" and (field, bytes_per_token) != (None, None):
        name = "field" if field is not None else "bytes_per_token"
        raise ValueError(f"query.{name}: {format} has no text or fields. Leave it out")
    options = SourceOptions(field=field, tokenizer=bytes_per_token)
    service.store.check_folder()
    with tempfile.TemporaryDirectory(dir=service.store.files, prefix=UPLOAD_PREFIX) as folder:
        path = Path(folder) / f"body{_SUFFIXES[format]}"
        with path.open("wb") as file:
            async for chunk in request.stream():
                file.write(chunk)
        if format == "histogram":
            row = await run_in_threadpool(_read_histogram, service, path)
        else:
            row = await run_in_threadpool(_read, service, path, options)

    def effect(connection: Connection) -> Done:
        if row.kind != "histogram" and not lengths_path(service.store, row.id).exists():
            raise StoreUnavailable(f"lengths {row.id} were removed while they came in")
        put_lengths(connection, row)
        return Done(201, {name: getattr(row, name) for name in _ANSWERED})

    below = service_routes.LENGTHS
    return await run_in_threadpool(once, service, request, row.id, effect, below=below)


@routes.delete(service_routes.LENGTHS_SET, status_code=204, response_class=Response)
def delete_lengths(service: ServiceOf, lengths: str) -> Response:
    """Remove a data set; 409 while a job draws from it or a proposal is made from it."""
    if not remove_lengths(service.store, lengths):
        raise not_found(f"lengths {lengths}")
    return Response(status_code=204)


def _read(service: Service, path: Path, options: SourceOptions) -> LengthsRow:
    try:
        lengths = read_lengths([path], options).values
    except UncountedText as error:
        cause = error.cause.replace(str(path), "body")
        raise Problem(422, "invalid-request", f"{cause}. {_COUNT}") from None
    except LengthsError as error:
        # The client knows its upload as the body, and the options as parameters of the query.
        reason = str(error)
        for here, there in ((str(path), "body"), *_PARAMETERS.items()):
            reason = reason.replace(here, there)
        raise Problem(422, "invalid-request", reason) from None
    if len(lengths) > service.limits.sequences:
        raise Problem(413, "too-large", f"more than {service.limits.sequences} sequences")
    return write_lengths(service.store, lengths)


def _read_histogram(service: Service, path: Path) -> LengthsRow:
    most = service.limits.body_bytes
    if path.stat().st_size > most:
        raise Problem(413, "too-large", f"a histogram of more than {most} bytes")
    buckets = parse_histogram(path.read_bytes(), "body")
    if sum(bucket.sequences for bucket in buckets) > service.limits.sequences:
        raise Problem(413, "too-large", f"more than {service.limits.sequences} sequences")
    return histogram_row(buckets)
