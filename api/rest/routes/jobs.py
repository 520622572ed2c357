"""Jobs: begun from a proposal, with lengths to draw batches from or batches that are pushed."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from seqplan.api.rest.routes.catalogue import Limit, paged
from seqplan.api.rest.routes.new_job import Continued, continued, sampler_state
from seqplan.api.rest.wire.fields import MOST, LookAhead, Natural, Positive
from seqplan.api.rest.wire.idempotency import once
from seqplan.api.rest.wire.problems import Problem, not_found
from seqplan.api.service.service import Service
from seqplan.api.store import jobs, progress, schema
from seqplan.api.store.catalogue import get, held, lengths_path
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.cluster import Cluster
from seqplan.planner.proposal.document import ProposalDocument

AtStep = Annotated[int, Query(ge=0, le=MOST)]

_SHOWN = ["id", "proposal", "lengths", "tokens", "seed", "steps", "look_ahead", "world_size"]
_SHOWN += ["state", "last_step", "failed_step", "error", "continues", "first_step"]


class NewJob(BaseModel):
    """Either ``lengths`` and ``steps``, or neither: then the trainer pushes its batches.

    Or ``continues``: then lengths, tokens and seed are those of the job that is continued, and so
    are ``steps`` unless given.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
    proposal: str
    lengths: str | None = None
    tokens: Positive | None = None
    seed: Natural = 0
    steps: Positive | None = None
    look_ahead: LookAhead = 8
    continues: Continued | None = None


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
    found = held(connection, schema.proposals, new.proposal)
    if found is None:
        raise Problem(422, "invalid-request", f"proposal: there is no proposal {new.proposal}")
    if found["state"] != "ready":
        raise Problem(409, "not-ready", f"proposal {new.proposal} is {found['state']}")
    cluster = ProposalDocument.from_json(found["document"], "proposal").cluster
    if new.continues is None:
        drawn = _own_batches(service, connection, new, cluster)
    else:
        drawn = continued(service, connection, new.continues, _continued_steps(new), cluster)
    _check_room(service, connection)
    key = new.id or secrets.token_hex(8)
    if get(connection, schema.jobs, key) is not None:
        raise Problem(409, "exists", f"there is a job {key} already")
    return {
        "id": key,
        "proposal": new.proposal,
        **drawn,
        "look_ahead": new.look_ahead,
        "world_size": cluster.gpus,
        "state": "planning",
    }


def _own_batches(
    service: Service, connection: Connection, new: NewJob, cluster: Cluster
) -> dict[str, Any]:
    """What a job that continues none draws, or that its batches are pushed."""
    row: dict[str, Any] = {"lengths": new.lengths, "tokens": None, "seed": new.seed}
    row |= {"steps": new.steps, "last_step": None, "continues": None, "first_step": 0}
    if new.lengths is None:
        if new.steps is not None or new.tokens is not None:
            raise Problem(422, "invalid-request", "steps, tokens: are for jobs with lengths")
        return row
    if new.steps is None:
        raise Problem(422, "invalid-request", "steps: a job with lengths needs it")
    lengths = held(connection, schema.lengths, new.lengths)
    if lengths is None:
        raise Problem(422, "invalid-request", f"lengths: there are no lengths {new.lengths}")
    if lengths["kind"] == "histogram":
        raise Problem(
            409,
            "only-counts",
            f"lengths {new.lengths} are known by their histogram only, which has no sequences to "
            "draw; upload the lengths themselves, or push the batches",
        )
    row |= {"tokens": new.tokens or cluster.tokens, "last_step": new.steps - 1}
    array = np.load(lengths_path(service.store, new.lengths), mmap_mode="r")
    total = int(Sampler(array, row["tokens"], cluster.max_len, new.seed).lengths.sum())
    if total < row["tokens"]:
        raise Problem(
            422,
            "invalid-request",
            f"tokens: the lengths have {total} tokens, fewer than a step of {row['tokens']}",
        )
    return row


def _continued_steps(new: NewJob) -> int | None:
    """The steps of a job that continues another, where they are given."""
    for name in ("lengths", "tokens", "seed"):
        if name in new.model_fields_set:
            raise Problem(
                422,
                "invalid-request",
                f"{name}: is that of the job that is continued; leave it out",
            )
    return new.steps


def _check_room(service: Service, connection: Connection) -> None:
    active = len(jobs.unfinished(connection))
    if active >= service.limits.jobs:
        raise Problem(409, "too-many-jobs", f"{active} jobs are being planned, the most allowed")


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
            if body.continues is not None and row["lengths"] is None:
                jobs.copy_batches(connection, body.continues.job, body.continues.step, row["id"])
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
            if row is None:
                raise not_found(f"job {job}")
            row["planned_steps"] = progress.planned_beyond(connection, job, -1)
            row["last_planned_step"] = jobs.last_planned(connection, job)
            row["acknowledged"] = progress.last_acknowledged(connection, job, row["world_size"])
        return JSONResponse(row)

    @routes.delete("/{job}", status_code=204, response_class=Response)
    def remove(job: str) -> Response:
        """Stop planning a job and remove all that is kept of it; its ranks are told 404."""
        if not service.remove(job):
            raise not_found(f"job {job}")
        return Response(status_code=204)

    @routes.post("/{job}/restart", status_code=202)
    def restart(request: Request, job: str) -> Response:
        """Plan a failed job again, from the step that could not be planned; 409 for any other."""
        failed: list[dict[str, Any]] = []

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            row = held(connection, schema.jobs, job)
            if row is None:
                raise not_found(f"job {job}")
            if row["state"] != "failed":
                raise Problem(409, "not-failed", f"job {job} is {row['state']}, it has not failed")
            _check_room(service, connection)
            again = {"state": "planning", "failed_step": None, "error": None}
            jobs.settle_job(connection, job, **again)
            failed.append({**row, **again})
            return 202, {"id": job, "state": "planning", "step": row["failed_step"]}

        answer = once(service, request, "restart", effect)
        for row in failed:
            service.plan_again(row)
        return answer

    @routes.get("/{job}/state")
    def state(job: str, step: AtStep) -> dict[str, Any]:
        """Where a job that draws its batches is before ``step``, planned or the next to be.

        ``cursor``: sequences of the ``epoch`` used by earlier steps; ``carry_over``: those drawn
        and not yet used, which there never are between steps.
        """
        with service.store.reading() as connection:
            row = get(connection, schema.jobs, job)
            if row is None:
                raise not_found(f"job {job}")
            return sampler_state(service, connection, row, step)

    @routes.post("/{job}/batches", status_code=202)
    def push(request: Request, job: str, body: PushedBatches) -> Response:
        """Batches for a job without lengths, in ascending order of step."""

        def effect(connection: Connection) -> tuple[int, dict[str, Any]]:
            row = held(connection, schema.jobs, job)
            if row is None:
                raise not_found(f"job {job}")
            last = max(jobs.last_pushed(connection, job), row["first_step"] - 1)
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
