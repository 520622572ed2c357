"""Profiles, length data sets and proposals: listed, shown, uploaded, made."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Table, select
from starlette.concurrency import run_in_threadpool

from seqplan.api.rest.wire.fields import ExchangeTimes, Natural, Positive, Share
from seqplan.api.rest.wire.idempotency import once
from seqplan.api.rest.wire.problems import Problem, not_found
from seqplan.api.service.proposal_maker import requested
from seqplan.api.service.service import Service
from seqplan.api.store import schema
from seqplan.api.store.catalogue import (
    get,
    held,
    lengths_path,
    page,
    put_lengths,
    put_profile,
    put_proposal,
    remove_lengths,
    remove_proposal,
    write_histogram,
)
from seqplan.api.store.catalogue import write_lengths as keep_array
from seqplan.api.store.errors import InUse, StoreUnavailable
from seqplan.planner.cluster import TOKENS_PER_GPU
from seqplan.planner.proposal.document import ProposalDocument
from seqplan.profiler.lengths import LengthsError, parse_histogram, read_lengths
from seqplan.profiler.profile import Profile
from seqplan.profiler.shipped.catalogue import shipped, shipped_names

Limit = Annotated[int, Query(ge=1, le=1000)]
_SUFFIXES = {"npy": ".npy", "jsonl": ".jsonl", "txt": ".txt", "histogram": ".json"}


class NewProposal(BaseModel):
    """What ``seqplan propose`` is told, by the names of its options, with its defaults.

    ``profile``: id or name; ``lengths``: id; ``exchange_ms``: one time, [equal replicas, different
    ones], or "published".
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    profile: str
    lengths: str
    gpus: Positive
    max_len: Positive
    tokens: Positive | None = None
    method: Literal["search", "eq4"] = "search"
    seed: Natural = 0
    optimizer_shards: Positive | None = None
    include_flagged: bool = False
    exchange_ms: ExchangeTimes | None = None
    overlap: Share = 0.0


def paged(
    service: Service, table: Table, columns: list[str], cursor: str, limit: int
) -> dict[str, Any]:
    """A page: ``items`` and the ``next`` cursor, null on the last page."""
    with service.store.reading() as connection:
        rows, following = page(connection, table, columns, cursor, limit)
    return {"items": rows, "next": following}


def catalogue_routes(service: Service) -> APIRouter:
    """``/v1/profiles``, ``/v1/lengths`` and ``/v1/proposals``."""
    routes = APIRouter(prefix="/v1")

    @routes.get("/profiles", tags=["profiles"])
    def profiles(cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
        """Uploaded profiles in order of id; ``shipped`` names those that need no upload."""
        found = paged(service, schema.profiles, ["id", "name"], cursor, limit)
        return {**found, "shipped": list(shipped_names())}

    @routes.get("/profiles/{profile}", tags=["profiles"])
    def profile(profile: str) -> Response:
        """A profile's document, by id or shipped name."""
        if profile in shipped_names():
            return JSONResponse(shipped(profile).document)
        with service.store.reading() as connection:
            row = get(connection, schema.profiles, profile)
        if row is None:
            raise not_found(f"profile {profile}")
        return Response(row["document"], media_type="application/json")

    @routes.post("/profiles", status_code=201, tags=["profiles"])
    async def new_profile(request: Request) -> Response:
        """Upload a profile document, as ``seqplan profile`` writes it."""
        text = _text(await request.body())

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            found = Profile.from_json(text, "body")
            return 201, {"id": put_profile(connection, found, text), "name": found.name}

        return await run_in_threadpool(once, service, request, text, effect)

    @routes.get("/lengths", tags=["lengths"])
    def all_lengths(cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
        """Length data sets in order of id."""
        shown = ["id", "kind", "sequences", "tokens", "longest"]
        return paged(service, schema.lengths, shown, cursor, limit)

    @routes.get("/lengths/{lengths}", tags=["lengths"])
    def one_lengths(lengths: str) -> Response:
        """A data set's figures and histogram: [over, up to, sequences, tokens] a bucket.

        ``kind``: sequences, or histogram where nothing else is known.
        """
        with service.store.reading() as connection:
            row = get(connection, schema.lengths, lengths)
        if row is None:
            raise not_found(f"lengths {lengths}")
        return JSONResponse({**row, "histogram": json.loads(row["histogram"])})

    @routes.post("/lengths", status_code=201, tags=["lengths"])
    async def new_lengths(request: Request, format: str = "npy") -> Response:
        """Upload lengths, streamed to disk; ``format``: npy, jsonl, txt or histogram.

        Same data, same id. A histogram, JSON as [[over, up to, sequences, tokens or nothing], …],
        does for proposals; a job cannot draw from it.
        """
        if format not in _SUFFIXES:
            raise ValueError(f"query.format: {format!r} is none of {', '.join(_SUFFIXES)}")
        with tempfile.TemporaryDirectory(dir=service.store.files) as folder:
            path = Path(folder) / f"body{_SUFFIXES[format]}"
            with path.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
            read = _read_histogram if format == "histogram" else _read
            row = await run_in_threadpool(read, service, path)

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            if not lengths_path(service.store, row["id"]).exists():
                raise StoreUnavailable(f"lengths {row['id']} were removed while they came in")
            put_lengths(connection, row)
            return 201, {name: row[name] for name in ("id", "sequences", "tokens", "longest")}

        return await run_in_threadpool(once, service, request, str(row["id"]), effect)

    @routes.delete("/lengths/{lengths}", status_code=204, response_class=Response, tags=["lengths"])
    def no_lengths(lengths: str) -> Response:
        """Remove a data set; 409 while a job draws from it or a proposal is made from it."""
        with _unless_in_use():
            found = remove_lengths(service.store, lengths)
        if not found:
            raise not_found(f"lengths {lengths}")
        return Response(status_code=204)

    @routes.get("/proposals", tags=["proposals"])
    def proposals(cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
        """Proposals in order of id."""
        return paged(service, schema.proposals, ["id", "state", "error"], cursor, limit)

    @routes.get("/proposals/{proposal}", tags=["proposals"])
    def one_proposal(proposal: str) -> Response:
        """A proposal: its state, how far it is, and its document when it is ready."""
        with service.store.reading() as connection:
            row = get(connection, schema.proposals, proposal)
        if row is None:
            raise not_found(f"proposal {proposal}")
        at = service.proposals.progress.get(proposal)
        progress = None if at is None else {"stage": at.stage, "done": at.done, "total": at.total}
        document = None if row["document"] is None else json.loads(row["document"])
        body = {"id": row["id"], "state": row["state"], "error": row["error"]}
        return JSONResponse({**body, "progress": progress, "document": document})

    @routes.get("/proposals/{proposal}/document", tags=["proposals"])
    def document(proposal: str) -> Response:
        """The file that ``seqplan propose -o`` writes; 409 while it is not ready."""
        with service.store.reading() as connection:
            row = get(connection, schema.proposals, proposal)
        if row is None:
            raise not_found(f"proposal {proposal}")
        if row["document"] is None:
            raise Problem(409, "not-ready", f"proposal {proposal} is {row['state']}")
        return Response(row["document"], media_type="application/json")

    @routes.delete(
        "/proposals/{proposal}", status_code=204, response_class=Response, tags=["proposals"]
    )
    def no_proposal(proposal: str) -> Response:
        """Remove a proposal, ready or not; 409 while a job is planned by it."""
        with _unless_in_use(), service.store.writing() as connection:
            found = remove_proposal(connection, proposal)
        if not found:
            raise not_found(f"proposal {proposal}")
        service.proposals.drop(proposal)
        return Response(status_code=204)

    @routes.post("/proposals", status_code=202, tags=["proposals"])
    def new_proposal(request: Request, body: NewProposal) -> Response:
        """Make a proposal; the answer's Location tells how far it is."""
        key = secrets.token_hex(8)

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            if held(connection, schema.lengths, body.lengths) is None:
                raise ValueError(f"body.lengths: there are no lengths {body.lengths}")
            asked = body.model_dump()
            asked["tokens"] = body.tokens or TOKENS_PER_GPU * body.gpus
            asked["profile"] = _profile_id(connection, body.profile)
            found = get(connection, schema.profiles, asked["profile"])
            assert found is not None
            requested(Profile.from_json(found["document"], "profile"), asked)
            put_proposal(connection, key, asked, None)
            return 202, {"id": key, "state": "running"}

        answer = once(service, request, body.model_dump_json(), effect)
        made = json.loads(bytes(answer.body))["id"]
        if made == key:
            service.proposals.add(key)
        answer.headers["Location"] = f"/v1/proposals/{made}"
        return answer

    @routes.post("/proposals/documents", status_code=201, tags=["proposals"])
    async def proposal_document(request: Request) -> Response:
        """Upload a proposal that ``seqplan propose`` made."""
        text = _text(await request.body())

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            key = ProposalDocument.from_json(text, "body").digest.removeprefix("sha256:")
            put_proposal(connection, key, {}, text)
            return 201, {"id": key, "state": "ready"}

        return await run_in_threadpool(once, service, request, text, effect)

    return routes


@contextmanager
def _unless_in_use() -> Iterator[None]:
    try:
        yield
    except InUse as error:
        raise Problem(409, "in-use", str(error)) from None


def _profile_id(connection: Connection, wanted: str) -> str:
    if wanted in shipped_names():
        found = shipped(wanted)
        text = json.dumps(dict(found.document), ensure_ascii=False)
        return put_profile(connection, found, text)
    query = select(schema.profiles.c.id).where(
        (schema.profiles.c.id == wanted) | (schema.profiles.c.name == wanted)
    )
    keys = list(connection.execute(query).scalars())
    if len(keys) != 1:
        why = "several profiles have this name; give the id" if keys else "is not known"
        raise ValueError(f"body.profile: {wanted!r}: {why}")
    return str(keys[0])


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"body: not UTF-8 ({error.reason})") from None


def _read(service: Service, path: Path) -> dict[str, Any]:
    try:
        lengths = read_lengths([path]).values
    except LengthsError as error:
        # The client knows its upload as the body, not by the file it was put in.
        raise Problem(422, "invalid-request", str(error).replace(str(path), "body")) from None
    if len(lengths) > service.limits.sequences:
        raise Problem(413, "too-large", f"more than {service.limits.sequences} sequences")
    return keep_array(service.store, lengths)


def _read_histogram(service: Service, path: Path) -> dict[str, Any]:
    most = service.limits.body_bytes
    if path.stat().st_size > most:
        raise Problem(413, "too-large", f"a histogram of more than {most} bytes")
    buckets = parse_histogram(path.read_bytes(), "body")
    if sum(bucket.sequences for bucket in buckets) > service.limits.sequences:
        raise Problem(413, "too-large", f"more than {service.limits.sequences} sequences")
    return write_histogram(service.store, buckets)
