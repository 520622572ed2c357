"""Jobs: begun from a proposal, with lengths to draw batches from or batches that are pushed."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection

from seqplan.api.rest.payloads import answers, bodies
from seqplan.api.rest.payloads.idempotency import Done, once
from seqplan.api.rest.payloads.json_bodies import json_body
from seqplan.api.rest.payloads.pages import read_page
from seqplan.api.rest.payloads.parameters import AtStep, Limit
from seqplan.api.rest.payloads.problems import Problem, not_found, require_found, require_row
from seqplan.api.rest.routes.new_job import check_room, describe_job, job_row, look_at_data
from seqplan.api.rest.routes.sampler_state import proposal_of, sampler_state
from seqplan.api.rest.state.shared import ServiceOf, read_off_loop
from seqplan.api.service.job_costs import check_costs, check_loads
from seqplan.api.store import rows
from seqplan.api.store.tables.acks import last_acknowledged
from seqplan.api.store.tables.batches import add_batches, copy_batches, last_pushed
from seqplan.api.store.tables.jobs import add_job, settle_job
from seqplan.api.store.tables.plans import count_planned_beyond, last_planned
from seqplan.api.store.tables.proposals import ready_document
from seqplan.api.store.tables.revisions import NewRevision, Revision, list_revisions
from seqplan.planner.batches.batch import Batch
from seqplan.plans import service_routes
from seqplan.plans.load import PhaseLoad

routes = APIRouter(tags=["jobs"])

_STOPPABLE = ("planning", "failed", "abandoned")


JobBody = Annotated[bodies.NewJob, Depends(json_body(bodies.NewJob))]


@routes.post(service_routes.JOBS, **answers.describe(answers.JobBegun, 201, body=bodies.NewJob))
def create_job(service: ServiceOf, request: Request, body: JobBody) -> Response:
    """Begin a job; its plans can be requested at once."""
    look = look_at_data(service, body)  # which may take seconds, in which others write

    def effect(connection: Connection) -> Done:
        row = job_row(service, connection, body, look)
        add_job(connection, row)
        if body.continues is not None and row.lengths is None:
            copy_batches(connection, body.continues.job, body.continues.step, row.id)
        return Done(201, describe_job(row), partial(service.plan, row))

    content = body.model_dump_json()
    return once(service, request, content, effect, below=service_routes.JOBS)


@routes.get(service_routes.JOBS, **answers.describe(answers.JobsPage))
@read_off_loop
def list_jobs(service: ServiceOf, cursor: str = "", limit: Limit = 100) -> dict[str, Any]:
    """Jobs in order of id."""
    return read_page(service.store, rows.ListedJob, cursor, limit)


@routes.get(service_routes.JOB, **answers.describe(answers.JobResponse))
@read_off_loop
def get_job(service: ServiceOf, job: str) -> Response:
    """A job's state, the last planned step and what each rank has acknowledged."""
    with service.store.reading() as connection:
        row = require_row(connection, rows.JobRow, job)
        body = {
            **rows.columns(row),
            "planned_steps": row.expired_steps + count_planned_beyond(connection, job, -1),
            "last_planned_step": last_planned(connection, job),
            "acknowledged": last_acknowledged(connection, job, row.world_size),
        }
    del body["key"], body["slowdown"]  # internal to the store
    return JSONResponse(body)


@routes.delete(service_routes.JOB, status_code=204, response_class=Response)
def delete_job(service: ServiceOf, job: str) -> Response:
    """Stop planning a job and remove it; its ranks get 404, its rows are deleted soon after."""
    if not service.remove(job):
        raise not_found(f"job {job}")
    return Response(status_code=204)


@routes.post(service_routes.STOP, **answers.describe(answers.StoppedResponse))
def stop_job(service: ServiceOf, job: str) -> Response:
    """Plan a job no further and keep all that it has; ranks get 424 beyond its last plan.

    It does not count as being planned; ``restart`` plans it further. 409 for one that is planned.
    """
    row = require_row(service.store, rows.JobRow, job)
    if row.state != "stopped" and service.halt(job, "stopped", *_STOPPABLE) is None:
        raise Problem(409, "not-planning", f"job {job} is {row.state}: nothing to stop")
    return JSONResponse({"id": job, "state": "stopped"})


@routes.post(service_routes.RESTART, **answers.describe(answers.Restarted, 202))
def restart_job(service: ServiceOf, request: Request, job: str) -> Response:
    """Plan a failed, stopped or abandoned job again, from its first step without a plan.

    Also one whose planning has ended without being noted as failed; 409 for any other.
    """

    def effect(connection: Connection) -> Done:
        row = require_found(rows.get_for_update(connection, rows.JobRow, job), f"job {job}")
        planning = service.job(job)
        lost = row.state == "planning" and (planning is None or planning.ended)
        if row.state not in ("failed", "stopped", "abandoned") and not lost:
            raise Problem(409, "not-failed", f"job {job} is {row.state}, it has not failed")
        check_room(service, connection)
        values = {"state": "planning", "failed_step": None, "error": None}
        settle_job(connection, job, **values, asked_at=int(time.time()))
        restarted = replace(row, state="planning", failed_step=None, error=None)
        step = row.failed_step
        if step is None:
            last = last_planned(connection, job)
            step = row.first_step if last is None else last + 1
        body = {"id": job, "state": "planning", "step": step}
        return Done(202, body, partial(service.plan_again, restarted))

    return once(service, request, "restart", effect)


@routes.get(service_routes.SAMPLER_STATE, **answers.describe(answers.SamplerStateResponse))
def get_sampler_state(service: ServiceOf, job: str, step: AtStep) -> dict[str, Any]:
    """Return where a job that draws its batches is before ``step``.

    ``cursor``: sequences of the ``epoch`` used by earlier steps; ``carry_over``: those drawn
    and not yet used, which there never are between steps.
    """
    return sampler_state(service, job, step)


Batches = Annotated[bodies.PushedBatches, Depends(json_body(bodies.PushedBatches))]


@routes.post(
    service_routes.BATCHES, **answers.describe(answers.Pushed, 202, body=bodies.PushedBatches)
)
def push_batches(service: ServiceOf, request: Request, job: str, body: Batches) -> Response:
    """Batches for a job without lengths, in ascending order of step."""

    def effect(connection: Connection) -> Done:
        row = require_found(rows.get_for_update(connection, rows.JobRow, job), f"job {job}")
        last = max(last_pushed(connection, job), row.first_step - 1, row.kept_from - 1)
        if row.lengths is not None or row.last_step is not None:
            why = "draws its batches from lengths" if row.lengths else "has ended"
            raise Problem(409, "no-more-batches", f"job {job} {why}", last_step=last)
        proposal = proposal_of(connection, row)
        batches = _check_batches(body.batches, last, proposal.workload.max_len)
        if any(batch.loads for batch in batches):
            try:
                check_loads(proposal, rows.read_slowdown(row.slowdown), row.robust)
            except ValueError as error:
                raise ValueError(f"body.batches: job {job}: {error}") from None
        add_batches(connection, job, batches)
        last = batches[-1].step if batches else last
        if body.end:
            settle_job(connection, job, last_step=last)
        taken = Done(202, {"job": job, "accepted": len(batches), "last_step": last})
        if row.state != "abandoned":
            return taken
        check_room(service, connection)
        return taken._replace(then=partial(service.plan, service.resume(connection, row)))

    answer = once(service, request, body.model_dump_json(), effect)
    service.note_request(job)
    if planning := service.job(job):
        planning.news.add_batches()
    return answer


def _check_batches(pushed: list[bodies.PushedBatch], known: int, max_len: int) -> list[Batch]:
    """Read the batches of a request; ``known``: the last step that the store has."""
    batches, last = [], known
    for index, batch in enumerate(pushed):
        where = f"body.batches[{index}]"
        if batch.step <= known:
            why = f"{where}.step: {batch.step} is not above {known}"
            raise Problem(409, "step-known", why, last_step=known)
        if batch.step <= last:
            raise ValueError(f"{where}.step: {batch.step} is not above {last}. Order the steps")
        last = batch.step
        batches.append(check_batch(batch, where, max_len))
    return batches


def check_batch(batch: bodies.PushedBatch, where: str, max_len: int) -> Batch:
    """Read a batch of a request; ``ValueError`` names its field, which begins with ``where``."""
    if batch.loss_tokens is not None and batch.loss_tokens > sum(batch.lengths):
        raise ValueError(f"{where}.loss_tokens: {batch.loss_tokens} is above the step's tokens")
    if max(batch.lengths, default=0) > max_len:
        index = next(index for index, length in enumerate(batch.lengths) if length > max_len)
        raise ValueError(
            f"{where}.lengths[{index}]: {batch.lengths[index]} is above the proposal's {max_len}"
        )
    try:
        loads = tuple(_read_load(load, batch) for load in batch.loads)
        return Batch(batch.step, tuple(batch.ids), tuple(batch.lengths), batch.loss_tokens, loads)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _read_load(load: bodies.PushedLoad, batch: bodies.PushedBatch) -> PhaseLoad:
    """Read a load of a request; times are whole microseconds, as in plans."""
    for name, values in (("tokens", load.tokens), ("work_ms", load.work_ms)):
        if len(values) != len(batch.lengths):
            raise ValueError(
                f"load {load.name}: {name} has {len(values)} values for {len(batch.lengths)} "
                "sequences. Give one for each"
            )
    work_ms = tuple(round(ms, 3) for ms in load.work_ms)
    overhead_ms = round(load.overhead_ms, 3)
    return PhaseLoad(load.name, tuple(load.tokens), work_ms, overhead_ms, load.capacity)


@routes.get(service_routes.REVISIONS, **answers.describe(answers.RevisionsResponse))
def get_revisions(service: ServiceOf, job: str) -> dict[str, Any]:
    """All revisions of a job, oldest first, with their reasons."""
    with service.store.reading() as connection:
        row = require_row(connection, rows.JobRow, job)
        return {"items": [_describe(revision) for revision in list_revisions(connection, row)]}


ProposalBody = Annotated[bodies.JobProposal, Depends(json_body(bodies.JobProposal))]


@routes.put(
    service_routes.JOB_PROPOSAL,
    **answers.describe(answers.RevisionResponse, body=bodies.JobProposal),
)
def set_job_proposal(service: ServiceOf, job: str, body: ProposalBody) -> dict[str, Any]:
    """Plan the unplanned steps of a job by another proposal.

    One of as many GPUs and the same ``max_len``; 409 for a job that is not being planned.
    """
    with service.store.reading() as connection:
        row = require_row(connection, rows.JobRow, job)
        latest = list_revisions(connection, row)[-1]
        _check_proposal(connection, row, body.proposal)
    if row.proposal == body.proposal:
        return _describe(latest)  # a repeated request, or nothing to change
    revision = None
    if row.state == "planning":
        new = NewRevision(body.proposal, latest.slowdown, "request", "by request")
        revision = service.revise(job, new)
    if revision is None:
        raise Problem(409, "not-planning", f"job {job} is {row.state}: no step is to be planned")
    return _describe(revision)


def _describe(revision: Revision) -> dict[str, Any]:
    slow = [{"rank": rank, "factor": factor} for rank, factor in revision.slowdown]
    return {"step": revision.step, **asdict(revision), "slowdown": slow}


def _check_proposal(connection: Connection, row: rows.JobRow, key: str) -> None:
    stored = rows.get(connection, rows.ProposalRow, key)
    if stored is None:
        raise ValueError(f"body.proposal: there is no proposal {key}")
    if stored.state != "ready":
        raise Problem(409, "not-ready", f"proposal {key} is {stored.state}")
    document = ready_document(stored)
    now, new = proposal_of(connection, row).workload, document.workload
    slow = rows.read_slowdown(row.slowdown)
    check_costs(document, slow, row.robust, refit=row.refit, request=stored.request)
    for name in ("gpus", "max_len"):
        have, want = getattr(new, name), getattr(now, name)
        if have != want:
            raise ValueError(f"body.proposal: has {name} {have}, job {row.id} has {want}")
