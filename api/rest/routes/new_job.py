"""Where a job's sampler is before a step, and jobs that go on from there by another proposal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from seqplan.api.rest.wire.fields import Natural
from seqplan.api.rest.wire.problems import Problem, before_first_step
from seqplan.api.service.job_batches import state_before
from seqplan.api.service.service import Service
from seqplan.api.store import jobs, schema
from seqplan.api.store.catalogue import get, held
from seqplan.planner.cluster import Cluster
from seqplan.planner.proposal.document import ProposalDocument


class Continued(BaseModel):
    """A job, and the step from which on its batches are planned by another proposal."""

    model_config = ConfigDict(extra="forbid", strict=True)
    job: str
    step: Natural


def sampler_state(
    service: Service, connection: Connection, row: dict[str, Any], step: int
) -> dict[str, Any]:
    """The state of a job before ``step``, with all that its next steps follow from.

    Problems: 409 where batches are pushed or the step before is not planned yet, 404 before the
    first step, 410 beyond the end.
    """
    job = row["id"]
    if row["lengths"] is None:
        raise Problem(
            409,
            "no-sampler",
            f"the batches of job {job} are pushed, so that no sampler has a state",
        )
    if step < row["first_step"]:
        raise before_first_step(row, step)
    if step > row["steps"]:
        last = row["steps"] - 1
        raise Problem(410, "end-of-plans", f"job {job} ends with step {last}", last_step=last)
    _check_planned(connection, row, step)
    proposal = _proposal(connection, row)
    max_len = proposal.cluster.max_len
    state = state_before(service.store, connection, row, max_len, step)
    return {
        "job": job,
        "step": state.step,
        "epoch": state.epoch,
        "cursor": state.cursor,
        "carry_over": [],
        "seed": row["seed"],
        "tokens": row["tokens"],
        "max_len": row["max_len"] or max_len,
        "proposal": proposal.digest,
        "profile": proposal.profile.digest,
        "lengths": f"sha256:{row['lengths']}",
    }


def continued(
    service: Service,
    connection: Connection,
    continues: Continued,
    steps: int | None,
    cluster: Cluster,
) -> dict[str, Any]:
    """The part of a new job's row that says what its batches are: those of another, from a step on.

    All that it needs of the other job is in it, so that the other may be removed. ``steps``: of
    the new job, by default the other's; ``cluster``: of the new job's proposal. Problems: 422 for a
    job or step that there is not, and where the proposal is for shorter sequences; 409 where the
    step before is not planned yet.
    """
    job, step = continues.job, continues.step
    row = held(connection, schema.jobs, job)
    if row is None:
        raise _invalid(f"continues.job: there is no job {job}")
    if step < row["first_step"]:
        raise _invalid(f"continues.step: job {job} begins with step {row['first_step']}")
    max_len = row["max_len"] or _proposal(connection, row).cluster.max_len
    if cluster.max_len < max_len:
        raise _invalid(
            f"proposal: is for sequences of up to {cluster.max_len} tokens, but those of job {job} "
            f"have up to {max_len}; propose with max_len {max_len}"
        )
    same = {"continues": job, "first_step": step, "seed": row["seed"]}
    same |= {"lengths": row["lengths"], "tokens": row["tokens"]}
    if row["lengths"] is None:
        if steps is not None:
            raise _invalid("steps: is for jobs with lengths")
        if row["last_step"] is not None and step > row["last_step"]:
            raise _invalid(f"continues.step: job {job} ends with step {row['last_step']}")
        return {**same, "steps": None, "last_step": row["last_step"]}
    steps = row["steps"] if steps is None else steps
    if step >= steps:
        raise _invalid(
            f"continues.step: {step} is beyond the last of {steps} steps, {steps - 1}; to go on "
            "from there give more steps"
        )
    _check_planned(connection, row, step)
    state = state_before(service.store, connection, row, max_len, step)
    return {
        **same,
        "steps": steps,
        "last_step": steps - 1,
        "max_len": max_len,
        "first_epoch": state.epoch,
        "first_cursor": state.cursor,
    }


def _check_planned(connection: Connection, row: dict[str, Any], step: int) -> None:
    """409 unless all steps before ``step`` are planned: no checkpoint is beyond those."""
    last = jobs.last_planned(connection, row["id"])
    if step > (row["first_step"] if last is None else last + 1):
        raise Problem(
            409,
            "not-planned",
            f"job {row['id']} is not planned up to step {step}; the last planned is {last}",
            last_step=last,
        )


def _proposal(connection: Connection, row: dict[str, Any]) -> ProposalDocument:
    found = get(connection, schema.proposals, row["proposal"])
    assert found is not None  # it stays while a job uses it
    return ProposalDocument.from_json(found["document"], "proposal")


def _invalid(detail: str) -> Problem:
    return Problem(422, "invalid-request", detail)
