"""Removals leave nothing, and used rows are not removed; for every database."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, event, func, select

from seqplan.api.service.upkeep import Keeping, Upkeep
from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import (
    acks,
    answers,
    batches,
    expiry,
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


TABLES = (
    schema.batches,
    schema.plans,
    schema.ranks,
    schema.measurements,
    schema.sampler_states,
    schema.answers,
)


def _keep(connection: Connection, job: str, steps: int) -> None:
    """Store rows of a job in every table, some more than one batch deletes."""
    jobs.add_job(connection, replace(JOB, id=job))
    key = jobs.job_key(connection, job)
    for step in range(steps):
        batches.add_batches(connection, job, [Batch(step, (1,), (2,))])
        plans.add_plan(connection, job, StoredPlan(step, "sha256:x", "{}"), 1.0)
    state = {"job": key, "step": 0, "epoch": 0, "cursor": 0}
    connection.execute(schema.sampler_states.insert().values(state))
    _acknowledge(connection, job, steps)
    for path in (f"/v1/jobs/{key}/batches", "/v1/jobs"):
        answer = answers.StoredAnswer("ab", 201, f'{{"id":"{job}","proposal":"p"}}')
        answers.keep_answer(connection, path, job, answer)


def _acknowledge(connection: Connection, job: str, steps: int) -> None:
    acks.acknowledge(connection, [AckRow(job, step, 0) for step in range(steps)])
    times = [MeasurementRow(job, step, rank, 5.0) for step in range(steps) for rank in range(2)]
    measurements.add_measurements(connection, times)


def _count(connection: Connection) -> list[int]:
    counts = (select(func.count()).select_from(table) for table in TABLES)
    return [connection.execute(count).scalar_one() for count in counts]


def _look(store: Store) -> None:
    Upkeep(
        store, Keeping(), abandon=lambda job: None, remove=lambda job: None, take_requests=dict
    ).look()


def _rows_by_transaction(store: Store) -> list[int]:
    """Count the rows that each transaction changes from now on, as the database reports them."""
    changed = [0]
    engine = store._engine

    @event.listens_for(engine, "begin")
    def begin(_: Connection) -> None:
        changed.append(0)

    @event.listens_for(engine, "after_cursor_execute")
    def executed(
        _: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if statement.split()[0] in ("DELETE", "INSERT", "UPDATE"):
            changed[-1] += cursor.rowcount

    return changed


def test_a_removed_job_is_gone_at_once_and_its_rows_follow_in_batches(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MOST_ROWS", 200)
    store = opened()
    with store.writing() as connection:
        _keep(connection, "j", 3)
        others = _count(connection)
    with store.writing() as connection:
        _keep(connection, "j_", 300)
        row = get(connection, JobRow, "j")
    changed = _rows_by_transaction(store)
    with store.writing() as connection:
        assert jobs.remove_job(connection, "j_")
        assert not jobs.remove_job(connection, "j_")
    with store.reading() as connection:
        assert plans.last_planned(connection, "j_") is None
        assert batches.batches_after(connection, "j_", -1, 9) == []
        assert acks.last_acknowledged(connection, "j_", 2) == [-1, -1]
        assert measurements.last_measured_step(connection, "j_") is None
        assert row is not None
        assert jobs.still_wanted(connection, row)
        assert not jobs.still_wanted(connection, replace(row, proposal="another"))
        assert not jobs.still_wanted(connection, replace(row, id="j_"))
    with store.writing() as connection:
        # What comes late of it is not kept; another may have its name, and none of its rows.
        _acknowledge(connection, "j_", 3)
        jobs.add_job(connection, replace(JOB, id="j_"))
        assert plans.list_planned_steps(connection, "j_") == []
    _look(store)
    assert max(changed) <= expiry.MOST_ROWS
    assert sum(changed) > 5 * expiry.MOST_ROWS
    with store.reading() as connection:
        assert _count(connection) == others
        assert expiry.pending_removals(connection) == []


def test_deleting_goes_on_at_the_next_start(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        _keep(connection, "j", 50)
        assert jobs.remove_job(connection, "j")
        (key,) = expiry.pending_removals(connection)
        assert expiry.delete_batch(connection, key, 10)
    store = opened()
    _look(store)
    with store.reading() as connection:
        assert _count(connection) == [0] * len(TABLES)


def test_space_of_a_removed_job_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = Store(str(path))
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        for step in range(600):
            plans.add_plan(connection, "j", StoredPlan(step, "sha256:x", "x" * 16_384), 1.0)
    with store.writing() as connection:
        jobs.remove_job(connection, "j")
    _look(store)
    store.close()
    assert path.stat().st_size < 6 << 20


def test_a_store_that_keeps_its_space_is_rewritten_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store(str(path)).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA auto_vacuum = NONE")
        database.execute("VACUUM")  # which a change of WAL files takes elsewhere
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    Store(str(path)).close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_used_rows_are_not_removed(opened: Opener) -> None:
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


def test_old_answers_are_removed(store: Store) -> None:
    with store.writing() as connection:
        for number in range(5):
            answer = answers.StoredAnswer("ab", 201, "{}")
            answers.keep_answer(connection, "/v1/jobs", f"{number}", answer)
        connection.exec_driver_sql("UPDATE answers SET at = at - 90000 WHERE key < '3'")
    _look(store)
    with store.reading() as connection:
        known = [answers.earlier_answer(connection, "/v1/jobs", f"{n}") for n in range(5)]
    assert [answer is not None for answer in known] == [False] * 3 + [True] * 2
