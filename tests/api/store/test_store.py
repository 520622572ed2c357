"""The contract of a store, for every database; and what only SQLite does."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqplan.api.store import schema
from seqplan.api.store import store as store_module
from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables import acks, answers, batches, jobs, lengths, measurements, plans
from seqplan.api.store.tables.acks import AckRow
from seqplan.api.store.tables.measurements import MeasurementRow
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.planner.batches.batch import Batch

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)
Opener = Callable[[], Store]


def test_writes_survive_reopening(opened: Opener) -> None:
    store = opened()
    pushed = [Batch(3, (7, 8), (10, 20)), Batch(5, (9,), (30,), 12)]
    plan = StoredPlan(3, "sha256:x", '{"digest":…}')
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        batches.add_batches(connection, "j", pushed)
        plans.add_plan(connection, "j", plan, 1.5)
        for rank, step in ((0, 3), (0, 3), (1, 2), (0, 1)):
            acks.acknowledge(connection, [AckRow("j", step, rank)])
        measurements.add_measurements(connection, [MeasurementRow("j", 3, 0, 5.0)])
        measurements.add_measurements(connection, [MeasurementRow("j", 3, 0, 6.0)])
        answers.keep_answer(connection, "/path", "key", answers.StoredAnswer("ab", 201, "{}"))
    store = opened()
    with store.reading() as connection:
        assert [row.id for row in jobs.list_unfinished(connection)] == ["j"]
        assert batches.batches_after(connection, "j", -1, 9) == pushed
        assert batches.batches_after(connection, "j", 3, 9) == pushed[1:]
        assert batches.last_pushed(connection, "j") == 5
        assert plans.get_plan(connection, "j", 3) == plan
        assert plans.get_plan(connection, "j", 5) is None
        assert plans.list_planned_steps(connection, "j") == [3]
        assert acks.last_acknowledged(connection, "j", 2) == [3, 2]
        measured = connection.execute(schema.measurements.select()).all()
        assert [row.measured_ms for row in measured] == [6.0]
        assert answers.earlier_answer(connection, "/path", "key") == answers.StoredAnswer(
            "ab", 201, "{}"
        )
        assert answers.earlier_answer(connection, "/path", "other") is None


def test_a_transaction_is_whole_or_not_at_all(opened: Opener) -> None:
    store = opened()

    def fail() -> None:
        with store.writing() as connection:
            jobs.add_job(connection, JOB)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with store.reading() as connection:
        assert jobs.list_unfinished(connection) == []


def test_lengths_are_kept_once(opened: Opener) -> None:
    store = opened()
    array = np.array([5, 1, 700], np.int64)
    rows = [lengths.write_lengths(store, array) for _ in range(2)]
    assert rows[0] == rows[1]
    with store.writing() as connection:
        for row in rows:
            lengths.put_lengths(connection, row)
    assert np.load(lengths.lengths_path(store, rows[0].id)).tolist() == array.tolist()


def test_a_locked_database_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_BUSY_MS", 500)
    store = Store(str(tmp_path / "s.db"))
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def write() -> None:
        with store.writing() as connection:
            jobs.add_job(connection, JOB)

    with pytest.raises(StoreUnavailable, match="locked"):
        write()
    other.execute("ROLLBACK")
    other.close()
    write()
    store.close()
