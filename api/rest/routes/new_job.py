"""The row of a new job: one that begins a run, or goes on from another by a new proposal.

``look_at_data`` reads the data before the transaction in which the job is begun: reading lengths,
and drawing from them, takes seconds for a large data set, in which others write.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from seqplan.api.rest.payloads.bodies import Continued, NewJob
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.routes.sampler_state import check_planned, read_max_len
from seqplan.api.service.job_costs import check_costs, list_slow_ranks
from seqplan.api.service.look_ahead import state_before
from seqplan.api.service.service import Service
from seqplan.api.store import rows
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, StoreUnavailable
from seqplan.api.store.tables.jobs import list_unfinished
from seqplan.api.store.tables.lengths import open_lengths
from seqplan.api.store.tables.plans import read_latest_state
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.batches.sampler import START, Sampler, SamplerState
from seqplan.planner.workload import Workload

_OWN = ("lengths", "tokens", "seed", "steps", "last_step", "continues", "first_step")
_CONTINUED = ("continues", "first_step", "seed", "lengths", "tokens", "steps", "last_step")
_FIRST_STATE = ("max_len", "first_epoch", "first_cursor")


def job_row(service: Service, connection: Connection, new: NewJob, look: DataLook) -> rows.JobRow:
    """Make the row of a new job, checked against what it names.

    ``look``: the result of ``look_at_data`` before this transaction, which reads no data.
    """
    proposal = rows.get_for_update(connection, rows.ProposalRow, new.proposal)
    if proposal is None:
        raise _invalid(f"proposal: there is no proposal {new.proposal}")
    if proposal.state != "ready":
        raise Problem(409, "not-ready", f"proposal {new.proposal} is {proposal.state}")
    document = ready_document(proposal)
    workload = document.workload
    slow = list_slow_ranks(new.slowdown, workload.gpus, refit=new.refit, robust=new.robust)
    check_costs(document, slow, new.robust, refit=new.refit, request=proposal.request)
    row = rows.JobRow(
        id=new.id or secrets.token_hex(8),
        proposal=new.proposal,
        lengths=new.lengths,
        seed=new.seed,
        steps=new.steps,
        look_ahead=new.look_ahead,
        world_size=workload.gpus,
        refit=new.refit,
        slowdown=rows.write_slowdown(slow),
        robust=new.robust,
    )
    if new.continues is None:
        row = _with_own_batches(connection, row, new.tokens, workload, look)
    else:
        _check_given(new)
        row = _with_continued_batches(connection, row, new.continues, workload, look)
    check_room(service, connection)
    if rows.get(connection, rows.ListedJob, row.id) is not None:
        raise Problem(409, "exists", f"there is a job {row.id} already")
    return row


def describe_job(row: rows.JobRow) -> dict[str, Any]:
    """Return the response to a request for a new job: its fields and derived ones."""
    drawn: tuple[str, ...] = _OWN
    if row.continues is not None:
        drawn = _CONTINUED if row.lengths is None else _CONTINUED + _FIRST_STATE
    names = ("id", "proposal", *drawn, "look_ahead", "world_size", "state")
    return {name: getattr(row, name) for name in names}


def check_room(service: Service, connection: Connection) -> None:
    """Raise 409 if the service plans as many jobs as it may."""
    active = len(list_unfinished(connection))
    if active >= service.limits.jobs:
        raise Problem(409, "too-many-jobs", f"{active} jobs are being planned, the most allowed")


def _with_own_batches(
    connection: Connection, row: rows.JobRow, tokens: int | None, workload: Workload, look: DataLook
) -> rows.JobRow:
    """Add what a job that continues none draws, or that its batches are pushed."""
    if row.lengths is None:
        if row.steps is not None or tokens is not None:
            name = "tokens" if row.steps is None else "steps"
            raise _invalid(f"{name}: is for jobs with lengths. Give lengths, or leave it out")
        return row
    if row.steps is None:
        raise _invalid("steps: a job with lengths needs it")
    lengths = rows.get_for_update(connection, rows.LengthsRow, row.lengths)
    if lengths is None:
        raise _invalid(f"lengths: there are no lengths {row.lengths}")
    if lengths.kind == "histogram":
        raise Problem(
            409,
            "only-counts",
            f"lengths {row.lengths} are known by their histogram only, which has no sequences to "
            "draw; upload the lengths themselves, or push the batches",
        )
    tokens = tokens or workload.tokens
    look.check(row.lengths, workload.max_len)
    return replace(row, tokens=tokens, last_step=row.steps - 1)


def _check_given(new: NewJob) -> None:
    """Raise 422 if a job that continues another is given fields of that one."""
    for name in ("lengths", "tokens", "seed"):
        if name in new.model_fields_set:
            raise _invalid(f"{name}: is that of the job that is continued; leave it out")


def _with_continued_batches(
    connection: Connection,
    row: rows.JobRow,
    continues: Continued,
    workload: Workload,
    look: DataLook,
) -> rows.JobRow:
    """Add what a job's batches are: those of another, from a step on.

    All that it needs of the other job is in it, so that the other may be removed. ``workload``: of
    the new job's proposal. Problems: 422 for a job or step that there is not, and if the
    proposal is for shorter sequences; 409 if the step before is not planned yet.
    """
    job, step = continues.job, continues.step
    other = rows.get_for_update(connection, rows.JobRow, job)
    if other is None:
        raise _invalid(f"continues.job: there is no job {job}")
    if step < other.first_step:
        raise _invalid(f"continues.step: job {job} begins with step {other.first_step}")
    max_len = read_max_len(connection, other)
    if workload.max_len < max_len:
        raise _invalid(
            f"proposal: is for sequences of up to {workload.max_len} tokens, but those of job "
            f"{job} have up to {max_len}; propose with max_len {max_len}"
        )
    row = replace(
        row,
        continues=job,
        first_step=step,
        seed=other.seed,
        lengths=other.lengths,
        tokens=other.tokens,
    )
    if other.lengths is None:
        return _with_last_step(row, other)
    return _with_first_state(connection, row, other, max_len, look)


def _with_last_step(row: rows.JobRow, other: rows.JobRow) -> rows.JobRow:
    """Add the last step of a job that continues one with pushed batches."""
    if row.steps is not None:
        raise _invalid("steps: is for jobs with lengths")
    if row.first_step < other.kept_from:
        raise _invalid(
            f"continues.step: batches of job {other.id} before step {other.kept_from} have expired"
        )
    if other.last_step is not None and row.first_step > other.last_step:
        raise _invalid(f"continues.step: job {other.id} ends with step {other.last_step}")
    return replace(row, last_step=other.last_step)


def _with_first_state(
    connection: Connection, row: rows.JobRow, other: rows.JobRow, max_len: int, look: DataLook
) -> rows.JobRow:
    """Add the sampler of ``other`` before the first step of a job that continues it.

    The steps of the new job are by default the other's; ``max_len``: of the other's sequences.
    """
    step, steps = row.first_step, row.steps or other.steps
    assert steps is not None  # as the other draws its batches
    if step >= steps:
        raise _invalid(
            f"continues.step: {step} is beyond the last of {steps} steps, {steps - 1}; to go on "
            "from there give more steps"
        )
    check_planned(connection, other, step)
    look.check(*drawn_by(other, step, max_len))
    return replace(
        row,
        steps=steps,
        last_step=steps - 1,
        max_len=max_len,
        first_epoch=look.state.epoch,
        first_cursor=look.state.cursor,
    )


def _invalid(detail: str) -> Problem:
    return Problem(422, "invalid-request", detail)


@dataclass(frozen=True)
class DataLook:
    """Facts read from the data of a job, or the error of reading them."""

    of: tuple[Any, ...] = ()
    state: SamplerState = START
    error: Exception | None = None

    def check(self, *of: Any) -> None:
        """Raise the error of reading; ``StoreUnavailable`` if other data was read."""
        if self.error is not None:
            raise self.error
        if self.of != of:
            raise StoreUnavailable("what the job is to draw has changed meanwhile; try again")


def look_at_data(service: Service, new: NewJob) -> DataLook:
    """Read a new job's facts of the lengths, outside ``job_row``'s transaction.

    Errors in the request are left to ``job_row``.
    """
    try:
        if new.continues is not None:
            return _look_at_state(service, new.continues)
        return _look_at_tokens(service, new)
    except (Problem, ArrayMissing, ArrayDamaged, ValueError, OSError) as error:
        # An earlier answer to the same request comes before it.
        return DataLook(error=error)


def _look_at_tokens(service: Service, new: NewJob) -> DataLook:
    if new.lengths is None:
        return DataLook()
    with service.store.reading() as connection:
        proposal = rows.get(connection, rows.ProposalRow, new.proposal)
        lengths = rows.get(connection, rows.ListedLengths, new.lengths)
    if proposal is None or proposal.state != "ready":
        return DataLook()
    if lengths is None or lengths.kind == "histogram":
        return DataLook()
    workload = ready_document(proposal).workload
    array = open_lengths(service.store, new.lengths)
    Sampler(array, new.tokens or workload.tokens, workload.max_len, new.seed)  # checks them
    return DataLook((new.lengths, workload.max_len))


def _look_at_state(service: Service, continues: Continued) -> DataLook:
    step = continues.step
    with service.store.reading() as connection:
        other = rows.get(connection, rows.JobRow, continues.job)
        if other is None or other.lengths is None or not other.first_step <= step:
            return DataLook()
        check_planned(connection, other, step)
        max_len = read_max_len(connection, other)
        nearest = read_latest_state(connection, other, step)
    state = state_before(service.store, other, max_len, step, nearest)
    return DataLook(drawn_by(other, step, max_len), state=state)


def drawn_by(job: rows.JobRow, step: int, max_len: int) -> tuple[Any, ...]:
    """Return all that a job's sampler before ``step`` follows from."""
    first = (job.first_step, job.first_epoch, job.first_cursor)
    return (job.lengths, job.tokens, job.seed, *first, step, max_len)
