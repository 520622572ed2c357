"""Due batches of a job with pushed batches."""

import pytest

from seqplan.api.service.look_ahead import (
    EndOfData,
    JobRemoved,
    Pending,
    PlannedBatch,
    due_batches,
)
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.batches import add_batches
from seqplan.api.store.tables.jobs import add_job, remove_job, settle_job
from seqplan.planner.batches.batch import Batch

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)
BATCHES = [Batch(step, (step,), (10,)) for step in (1, 2, 5)]


@pytest.fixture(autouse=True)
def job(store: Store) -> None:
    """The store has a job to which nothing was pushed."""
    with store.writing() as connection:
        add_job(connection, JOB)


def test_pushed_batches_come_in_order_and_then_the_end(store: Store) -> None:
    coming = due_batches(store, JOB, -1, 100)
    assert isinstance(next(coming), Pending)
    with store.writing() as connection:
        add_batches(connection, "j", BATCHES)
    assert [next(coming) for _ in BATCHES] == [PlannedBatch(batch, None) for batch in BATCHES]
    assert isinstance(next(coming), Pending)
    with store.writing() as connection:
        settle_job(connection, "j", last_step=5)
    assert [next(coming) for _ in range(2)] == [EndOfData(5)] * 2


def test_planned_batches_are_not_due(store: Store) -> None:
    with store.writing() as connection:
        add_batches(connection, "j", BATCHES)
    assert next(due_batches(store, JOB, 2, 100)) == PlannedBatch(BATCHES[2], None)


def test_nothing_of_a_removed_job_is_due(store: Store) -> None:
    coming = due_batches(store, JOB, -1, 100)
    with store.writing() as connection:
        assert remove_job(connection, "j")
    with pytest.raises(JobRemoved):
        next(coming)
