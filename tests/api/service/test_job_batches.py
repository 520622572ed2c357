"""Due batches of a job that is removed."""

import pytest

from seqplan.api.service.look_ahead import JobRemoved, due_batches
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)


def test_nothing_of_a_removed_job_is_due(store: Store) -> None:
    with pytest.raises(JobRemoved):
        next(due_batches(store, JOB, -1, 100))
