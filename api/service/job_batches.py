"""What a job is to plan next: batches that it draws, or that its trainer pushes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import batches, plans
from seqplan.api.store.tables.lengths import open_lengths
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler, SamplerState


@dataclass(frozen=True)
class PlannedBatch:
    """A batch to plan, and the sampler before it for a job that draws."""

    batch: Batch
    state: SamplerState | None


class Pending:
    """Nothing is due now; batches may still be pushed."""


@dataclass(frozen=True)
class EndOfData:
    """All is planned; ``step`` is the job's last."""

    step: int


class JobRemoved(Exception):
    """The store has removed the job, so that nothing of it is due."""


def due_batches(
    store: Store, row: JobRow, last: int, max_len: int
) -> Iterator[PlannedBatch | Pending | EndOfData]:
    """Yield batches beyond step ``last``, without end: after the last step ``EndOfData``.

    ``max_len``, errors: as for ``job_sampler``. ``JobRemoved``, ``StoreUnavailable``.
    """
    if row.lengths is not None:
        yield from _drawn(store, row, last, max_len)
    else:
        yield from _read_pushed(store, row, last)


def job_sampler(store: Store, row: JobRow, max_len: int) -> Sampler:
    """Open what the job of ``row`` draws from; ``max_len``: of its proposal.

    A job that continues another truncates as that one does. ``ArrayDamaged``, ``ArrayMissing`` and
    ``OSError`` for lengths that cannot be read.
    """
    assert row.lengths is not None
    assert row.tokens is not None
    return Sampler(open_lengths(store, row.lengths), row.tokens, row.max_len or max_len, row.seed)


def state_before(
    store: Store, row: JobRow, max_len: int, step: int, known: SamplerState
) -> SamplerState:
    """Return where the job's sampler is before ``step``; ``max_len``, errors: see ``job_sampler``.

    From ``known``, the nearest state that is kept with a plan (``plans.known_state``): the lengths
    are needed for other steps only. Outside any transaction, as it may take seconds.
    """
    if known.step == step:
        return known
    return job_sampler(store, row, max_len).state_before(step, known)


def _drawn(
    store: Store, row: JobRow, last: int, max_len: int
) -> Iterator[PlannedBatch | EndOfData]:
    assert row.steps is not None
    sampler = job_sampler(store, row, max_len)
    with store.reading() as connection:
        known = plans.read_latest_state(connection, row, last + 1)
    for state, batch in sampler.resume(sampler.state_before(last + 1, known)):
        if state.step == row.steps:
            break
        yield PlannedBatch(batch, state)
    while True:
        yield EndOfData(row.steps - 1)


def _read_pushed(
    store: Store, row: JobRow, last: int
) -> Iterator[PlannedBatch | Pending | EndOfData]:
    while True:
        with store.reading() as connection:
            stored = get(connection, JobRow, row.id)
            pushed = batches.batches_after(connection, row.id, last, row.look_ahead)
        if stored is None:
            raise JobRemoved
        yield from (PlannedBatch(batch, None) for batch in pushed)
        if pushed:
            last = pushed[-1].step
        else:
            yield Pending() if stored.last_step is None else EndOfData(stored.last_step)
