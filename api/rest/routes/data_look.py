"""What a new job needs to know of its data, read before the transaction in which it is begun.

Reading lengths, and drawing from them, takes seconds for a large data set, in which others write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqplan.api.rest.payloads.bodies import Continued, NewJob
from seqplan.api.rest.payloads.problems import Problem
from seqplan.api.rest.routes.sampler_state import check_planned, read_max_len
from seqplan.api.service.job_batches import state_before
from seqplan.api.service.service import Service
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, StoreUnavailable
from seqplan.api.store.rows import JobRow, ListedLengths, ProposalRow, get
from seqplan.api.store.tables.lengths import open_lengths
from seqplan.api.store.tables.plans import read_latest_state
from seqplan.api.store.tables.proposals import ready_document
from seqplan.planner.batches.sampler import START, Sampler, SamplerState


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
        proposal = get(connection, ProposalRow, new.proposal)
        lengths = get(connection, ListedLengths, new.lengths)
    if proposal is None or proposal.state != "ready" or lengths is None:
        return DataLook()
    if lengths.kind == "histogram":
        return DataLook()
    workload = ready_document(proposal).workload
    array = open_lengths(service.store, new.lengths)
    Sampler(array, new.tokens or workload.tokens, workload.max_len, new.seed)  # checks them
    return DataLook((new.lengths, workload.max_len))


def _look_at_state(service: Service, continues: Continued) -> DataLook:
    step = continues.step
    with service.store.reading() as connection:
        other = get(connection, JobRow, continues.job)
        if other is None or other.lengths is None or not other.first_step <= step:
            return DataLook()
        check_planned(connection, other, step)
        max_len = read_max_len(connection, other)
        nearest = read_latest_state(connection, other, step)
    state = state_before(service.store, other, max_len, step, nearest)
    return DataLook(drawn_by(other, step, max_len), state=state)


def drawn_by(job: JobRow, step: int, max_len: int) -> tuple[Any, ...]:
    """Return all that a job's sampler before ``step`` follows from."""
    first = (job.first_step, job.first_epoch, job.first_cursor)
    return (job.lengths, job.tokens, job.seed, *first, step, max_len)
