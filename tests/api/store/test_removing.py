"""What is removed leaves nothing, and what is used is not removed; for every database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import Connection, select

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import (
    acks,
    answers,
    batches,
    jobs,
    lengths,
    measurements,
    plans,
    proposals,
)
from seqplan.api.store.tables.acks import AckRow
from seqplan.api.store.tables.measurements import MeasurementRow
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.planner.batches.batch import Batch

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)
Opener = Callable[[], Store]


def test_a_removed_job_leaves_nothing(opened: Opener) -> None:
    store = opened()
    tables = (schema.batches, schema.plans, schema.acks, schema.measurements, schema.answers)

    def fill(connection: Connection, job: str) -> None:
        jobs.add_job(connection, replace(JOB, id=job))
        batches.add_batches(connection, job, [Batch(0, (1,), (2,))])
        plans.add_plan(connection, job, StoredPlan(0, "sha256:x", "{}"), 1.0)
        say(connection, job)
        for path in (f"/v1/jobs/{job}/batches", "/v1/jobs"):
            answer = answers.Answer("ab", 201, f'{{"id": "{job}", "proposal": "p"}}')
            answers.keep_answer(connection, path, job, answer)

    def say(connection: Connection, job: str) -> None:
        acks.acknowledge(connection, [AckRow(job, 0, 0, "sha256:x")])
        measurements.add_measurements(connection, [MeasurementRow(job, 0, 0, 5.0)])

    def rows(connection: Connection) -> list[list[str]]:
        named = [table.c["key" if table is schema.answers else "job"] for table in tables]
        return [sorted(connection.execute(select(column)).scalars()) for column in named]

    with store.writing() as connection:
        for job in ("j", "J", "j_", "j2"):
            fill(connection, job)
        before = rows(connection)
        assert jobs.remove_job(connection, "j_")
        assert rows(connection) == [[job for job in column if job != "j_"] for column in before]
        assert not jobs.remove_job(connection, "j_")
        # What comes late of a removed job is not kept, so that another may have its name.
        say(connection, "j_")
        assert rows(connection) == [[job for job in column if job != "j_"] for column in before]
        other = get(connection, JobRow, "j2")
        assert other is not None
        assert jobs.still_wanted(connection, other)
        assert not jobs.still_wanted(connection, replace(other, proposal="another"))
        assert not jobs.still_wanted(connection, replace(other, id="j_"))


def test_what_is_used_is_not_removed(opened: Opener) -> None:
    store = opened()
    row = lengths.write_lengths(store, np.array([5, 6], np.int64))
    path = lengths.lengths_path(store, row.id)
    with store.writing() as connection:
        lengths.put_lengths(connection, row)
        proposals.put_proposal(connection, "p", {"lengths": row.id}, None)
        jobs.add_job(connection, replace(JOB, lengths=row.id))
    with pytest.raises(InUse, match="job j uses it"):
        lengths.remove_lengths(store, row.id)
    with store.writing() as connection, pytest.raises(InUse, match="proposal p: job j uses it"):
        proposals.remove_proposal(connection, "p")
    with store.writing() as connection:
        jobs.remove_job(connection, "j")
    with pytest.raises(InUse, match="proposal p is being made from them"):
        lengths.remove_lengths(store, row.id)
    assert path.exists()
    with store.writing() as connection:
        assert proposals.remove_proposal(connection, "p")
        assert not proposals.remove_proposal(connection, "p")
    assert lengths.remove_lengths(store, row.id)
    assert not lengths.remove_lengths(store, row.id)
    assert list(path.parent.iterdir()) == []
