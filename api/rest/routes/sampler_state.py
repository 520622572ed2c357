"""Where a job's sampler is before a step."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from seqplan.api.rest.payloads.problems import Problem, before_first_step, require_row
from seqplan.api.service.look_ahead import state_before
from seqplan.api.service.service import Service
from seqplan.api.store.rows import JobRow, ProposalRow, get
from seqplan.api.store.tables.plans import last_planned, read_latest_state
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.proposal.document import Proposal


def sampler_state(service: Service, job: str, step: int) -> dict[str, Any]:
    """Return the state of a job before ``step``, from which its next steps follow.

    Problems: 409 where batches are pushed or the step before is not planned yet, 404 before the
    first step and for the job, 410 beyond the end.
    """
    with service.store.reading() as connection:
        row = require_row(connection, JobRow, job)
        _check_step(row, step)
        check_planned(connection, row, step)
        proposal = proposal_of(connection, row)
        nearest = read_latest_state(connection, row, step)
    max_len = proposal.workload.max_len
    state = state_before(service.store, row, max_len, step, nearest)
    return {
        "job": job,
        "step": state.step,
        "epoch": state.epoch,
        "cursor": state.cursor,
        "carry_over": [],
        "seed": row.seed,
        "tokens": row.tokens,
        "max_len": row.max_len or max_len,
        "proposal": proposal.digest,
        "profile": proposal.profile.digest,
        "lengths": f"sha256:{row.lengths}",
    }


def _check_step(row: JobRow, step: int) -> None:
    job = row.id
    if row.lengths is None or row.steps is None:
        why = f"the batches of job {job} are pushed, so that no sampler has a state"
        raise Problem(409, "no-sampler", why)
    if step < row.first_step:
        raise before_first_step(row, step)
    if step > row.steps:
        last = row.steps - 1
        raise Problem(410, "end-of-plans", f"job {job} ends with step {last}", last_step=last)


def check_planned(connection: Connection, row: JobRow, step: int) -> None:
    """Raise 409 unless all steps before ``step`` are planned: no checkpoint is beyond those."""
    last = last_planned(connection, row.id)
    # Without a plan none has been made, or all have expired.
    if step > (max(row.first_step, row.kept_from) if last is None else last + 1):
        why = f"job {row.id} is not planned up to step {step}; the last planned is {last}"
        raise Problem(409, "not-planned", why, last_step=last)


def read_max_len(connection: Connection, row: JobRow) -> int:
    """Read the longest sequence of a job (tokens), by default that of its proposal."""
    return row.max_len or proposal_of(connection, row).workload.max_len


def proposal_of(connection: Connection, row: JobRow) -> Proposal:
    """Read the proposal that a job is planned by."""
    proposal = get(connection, ProposalRow, row.proposal)
    assert proposal is not None  # it stays while a job uses it
    return ready_document(proposal)
