"""Which proposal plans which steps of a job: listed, changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection

from seqplan.api.rest.payloads.answers import RevisionResponse, RevisionsResponse, answers
from seqplan.api.rest.payloads.bodies import JobProposal
from seqplan.api.rest.payloads.problems import Problem, require_found
from seqplan.api.rest.routes.sampler_state import proposal_of
from seqplan.api.rest.state.shared import ServiceOf
from seqplan.api.service.job_costs import check_refit, check_robust_proposal, check_slowdown
from seqplan.api.store.rows import JobRow, ProposalRow, get
from seqplan.api.store.slow_factors import read_slowdown
from seqplan.api.store.tables.proposals import ready_document
from seqplan.api.store.tables.revisions import Revision, list_revisions
from seqplan.plans import service_routes

routes = APIRouter(tags=["jobs"])


@routes.get(service_routes.REVISIONS, **answers(RevisionsResponse))
def get_revisions(service: ServiceOf, job: str) -> dict[str, Any]:
    """All revisions of a job, oldest first, with their reasons."""
    with service.store.reading() as connection:
        row = require_found(get(connection, JobRow, job), f"job {job}")
        return {"items": [_describe(revision) for revision in list_revisions(connection, row)]}


@routes.put(service_routes.JOB_PROPOSAL, **answers(RevisionResponse))
def set_job_proposal(service: ServiceOf, job: str, body: JobProposal) -> dict[str, Any]:
    """Plan the unplanned steps of a job by another proposal.

    One of as many GPUs and the same ``max_len``; 409 for a job that is not being planned.
    """
    with service.store.reading() as connection:
        row = require_found(get(connection, JobRow, job), f"job {job}")
        latest = list_revisions(connection, row)[-1]
        _check_proposal(connection, row, body.proposal)
    if row.proposal == body.proposal:
        return _describe(latest)  # a repeated request, or nothing to change
    revision = None
    if row.state == "planning":
        revision = service.revise(job, body.proposal, latest.slowdown, "request", "by request")
    if revision is None:
        raise Problem(409, "not-planning", f"job {job} is {row.state}: no step is to be planned")
    return _describe(revision)


def _describe(revision: Revision) -> dict[str, Any]:
    slow = [{"rank": rank, "factor": factor} for rank, factor in revision.slowdown]
    return {**asdict(revision), "slowdown": slow}


def _check_proposal(connection: Connection, row: JobRow, key: str) -> None:
    stored = get(connection, ProposalRow, key)
    if stored is None:
        raise ValueError(f"body.proposal: there is no proposal {key}")
    if stored.state != "ready":
        raise Problem(409, "not-ready", f"proposal {key} is {stored.state}")
    document = ready_document(stored)
    now, new = proposal_of(connection, row).workload, document.workload
    if row.refit:
        check_refit(document.profile, lockstep=document.in_lockstep, request=stored.request)
    if row.slowdown is not None:
        check_slowdown(document, read_slowdown(row.slowdown))
    if row.robust:
        check_robust_proposal(document)
    for name in ("gpus", "max_len"):
        have, want = getattr(new, name), getattr(now, name)
        if have != want:
            raise ValueError(f"body.proposal: has {name} {have}, job {row.id} has {want}")
