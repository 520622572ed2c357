"""Jobs: begun from a proposal, with lengths to draw batches from or batches that are pushed."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from seqplan.api.rest.catalogue_routes import Limit, paged
from seqplan.api.rest.fields import LookAhead, Natural, Positive
from seqplan.api.rest.once import once
from seqplan.api.rest.problems import Problem, not_found
from seqplan.api.service import Service
from seqplan.api.store import jobs, schema
from seqplan.api.store.catalogue import get, lengths_path
from seqplan.planner.batch import Batch
from seqplan.planner.proposal_file import ProposalDocument
from seqplan.planner.sampler import Sampler

_SHOWN = ["id", "proposal", "lengths", "tokens", "seed", "steps", "look_ahead", "world_size"]
_SHOWN += ["state", "last_step", "failed_step", "error"]


class NewJob(BaseModel):
    """Either ``lengths`` and ``steps``, or neither: then the trainer pushes its batches."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
    proposal: str
    lengths: str | None = None
    tokens: Positive | None = None
    seed: Natural = 0
    steps: Positive | None = None
    look_ahead: LookAhead = 8


class PushedBatch(BaseModel):
    """The sequences of one step."""

    model_config = ConfigDict(extra="forbid", strict=True)
    step: Natural
    ids: list[Natural]
    lengths: list[Positive]
    loss_tokens: Natural | None = None


class PushedBatches(BaseModel):
    """Batches in ascending order of step; ``end``: there are no more."""

    model_config = ConfigDict(extra="forbid", strict=True)
    batches: list[PushedBatch] = []
    end: bool = False


def job_row(service: Service, connection: Connection, new: NewJob) -> dict[str, Any]:
    """The row of a new job, checked against what it names."""
    found = get(connection, schema.proposals, new.proposal)
    if found is None:
        raise Problem(422, "invalid-request", f"proposal: there is no proposal {new.proposal}")
    if found["state"] != "ready":
        raise Problem(409, "not-ready", f"proposal {new.proposal} is {found['state']}")
    cluster = ProposalDocument.from_json(found["document"], "proposal").cluster
    tokens = new.tokens or cluster.tokens
    if new.lengths is None and (new.steps is not None or new.tokens is not None):
        raise Problem(422, "invalid-request", "steps, tokens: are for jobs with lengths")
    if new.lengths is not None:
        if new.steps is None:
            raise Problem(422, "invalid-request", "steps: a job with lengths needs it")
        if get(connection, schema.lengths, new.lengths) is None:
            raise Problem(422, "invalid-request", f"lengths: there are no lengths {new.lengths}")
        array = np.load(lengths_path(service.store, new.lengths), mmap_mode="r")
        total = int(Sampler(array, tokens, cluster.max_len, new.seed).lengths.sum())
        if total < tokens:
            raise Problem(
                422,
                "invalid-request",
                f"tokens: the lengths have {total} tokens, fewer than a step of {tokens}",
            )
    active = len(jobs.unfinished(connection))
    if active >= service.limits.jobs:
        raise Problem(409, "too-many-jobs", f"{active} jobs are being planned, the most allowed")
    key = new.id or secrets.token_hex(8)
    if get(connection, schema.jobs, key) is not None:
        raise Problem(409, "exists", f"there is a job {key} already")
    return {
        "id": key,
        "proposal": new.proposal,
        "lengths": new.lengths,
        "tokens": None if new.lengths is None else tokens,
        "seed": new.seed,
        "steps": new.steps,
        "look_ahead": new.look_ahead,
        "world_size": cluster.gpus,
        "state": "planning",
        "last_step": None if new.steps is None else new.steps - 1,
    }


def job_routes(service: Service) -> APIRouter:
    """``/v1/jobs`` and the batches of a job."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @routes.post("", status_code=201)
    def create(request: Request, body: NewJob) -> Response:
        """Begin a job; its plans can be asked for at once."""
        made: list[dict[str, Any]] = []

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            row = job_row(service, connection, body)
            jobs.add_job(connection, row)
            made.append(row)
            return 201, row

        answer = once(service, request, body.model_dump_json(), effect)
        for row in made:
            service.plan(row)
            answer.headers["Location"] = f"/v1/jobs/{row['id']}"
        return answer

    @routes.get("")
    def listed(cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
        """Jobs in order of id."""
        return paged(service, schema.jobs, _SHOWN, cursor, limit)

    @routes.get("/{job}")
    def one(job: str) -> Response:
        """A job's state, the last planned step and what each rank has acknowledged."""
        with service.store.reading() as connection:
            row = get(connection, schema.jobs, job)
            planned = jobs.planned_steps(connection, job)
            acknowledged = jobs.acknowledged(connection, job)
        if row is None:
            raise not_found(f"job {job}")
        row["planned_steps"] = len(planned)
        row["last_planned_step"] = planned[-1] if planned else None
        row["acknowledged"] = [acknowledged.get(rank, -1) for rank in range(row["world_size"])]
        return JSONResponse(row)

    @routes.post("/{job}/batches", status_code=202)
    def push(request: Request, job: str, body: PushedBatches) -> Response:
        """Batches for a job without lengths, in ascending order of step."""

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            row = get(connection, schema.jobs, job)
            if row is None:
                raise not_found(f"job {job}")
            last = jobs.last_pushed(connection, job)
            if row["lengths"] is not None or row["last_step"] is not None:
                why = "draws its batches from lengths" if row["lengths"] else "has ended"
                raise Problem(409, "no-more-batches", f"job {job} {why}", last_step=last)
            proposal = get(connection, schema.proposals, row["proposal"])
            assert proposal is not None
            document = ProposalDocument.from_json(proposal["document"], "proposal")
            batches = _checked(body.batches, last, document.cluster.max_len)
            jobs.add_batches(connection, job, batches)
            last = batches[-1].step if batches else last
            if body.end:
                jobs.settle_job(connection, job, last_step=last)
            return 202, {"job": job, "accepted": len(batches), "last_step": last}

        answer = once(service, request, body.model_dump_json(), effect)
        if planning := service.job(job):
            planning.pushed()
        return answer

    return routes


def _checked(pushed: list[PushedBatch], last: int, max_len: int) -> list[Batch]:
    batches = []
    for at, item in enumerate(pushed):
        where = f"body.batches[{at}]"
        if item.step <= last:
            raise Problem(
                409, "step-known", f"{where}.step: {item.step} is not above {last}", last_step=last
            )
        last = item.step
        if item.loss_tokens is not None and item.loss_tokens > sum(item.lengths):
            raise ValueError(f"{where}.loss_tokens: {item.loss_tokens} is above the step's tokens")
        for place, length in enumerate(item.lengths):
            if length > max_len:
                raise ValueError(
                    f"{where}.lengths[{place}]: {length} is above the proposal's {max_len}"
                )
        try:
            batch = Batch(item.step, tuple(item.ids), tuple(item.lengths), item.loss_tokens)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        batches.append(batch)
    return batches
