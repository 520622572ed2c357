"""The contract of a store, for every database; and what only SQLite does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, select, update

from seqplan.api.store import access, catalogue, jobs, progress, schema
from seqplan.api.store.errors import InUse, StoreError, StoreUnavailable
from seqplan.api.store.jobs import StoredPlan
from seqplan.api.store.migrations import MIGRATIONS
from seqplan.api.store.store import Store
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import SamplerState

JOB = {
    "id": "j",
    "proposal": "p",
    "seed": 0,
    "look_ahead": 2,
    "world_size": 2,
    "state": "planning",
}

Opener = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same store again and again, the earlier one closed."""
    url = str(tmp_path / "store.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    stores: list[Store] = []

    def again() -> Store:
        if stores:
            stores.pop().close()
        stores.append(Store(url, tmp_path / "files"))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


def test_what_was_written_is_there_after_opening_again(opened: Opener) -> None:
    store = opened()
    batches = [Batch(3, (7, 8), (10, 20)), Batch(5, (9,), (30,), 12)]
    plan = StoredPlan(3, "sha256:x", '{"digest":…}')
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        jobs.add_batches(connection, "j", batches)
        jobs.add_plan(connection, "j", plan, 1.5)
        for rank, step in ((0, 3), (0, 3), (1, 2), (0, 1)):
            row = {"job": "j", "step": step, "rank": rank, "digest": "sha256:x"}
            jobs.acknowledge(connection, [row])
        jobs.add_measurements(connection, [{"job": "j", "step": 3, "rank": 0, "measured_ms": 5.0}])
        jobs.add_measurements(connection, [{"job": "j", "step": 3, "rank": 0, "measured_ms": 6.0}])
        access.keep_answer(connection, "/path", "key", access.Answer("ab", 201, "{}"))
    store = opened()
    with store.reading() as connection:
        assert [row["id"] for row in jobs.unfinished(connection)] == ["j"]
        assert jobs.batches_after(connection, "j", -1, 9) == batches
        assert jobs.batches_after(connection, "j", 3, 9) == batches[1:]
        assert jobs.last_pushed(connection, "j") == 5
        assert jobs.get_plan(connection, "j", 3) == plan
        assert jobs.get_plan(connection, "j", 5) is None
        assert jobs.planned_steps(connection, "j") == [3]
        assert progress.last_acknowledged(connection, "j", 2) == [3, 2]
        measured = connection.execute(schema.measurements.select()).all()
        assert [row.measured_ms for row in measured] == [6.0]
        assert access.earlier_answer(connection, "/path", "key") == access.Answer("ab", 201, "{}")
        assert access.earlier_answer(connection, "/path", "other") is None


def test_a_transaction_is_whole_or_not_at_all(opened: Opener) -> None:
    store = opened()

    def fail() -> None:
        with store.writing() as connection:
            jobs.add_job(connection, JOB)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with store.reading() as connection:
        assert jobs.unfinished(connection) == []


def test_tokens(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        assert access.known_tokens(connection) == []
        token = access.add_token(connection, "a", "read")
        tokens = access.known_tokens(connection)
        assert access.scope_of(tokens, token) == "read"
        assert access.scope_of(tokens, token + "x") is None
        with pytest.raises(StoreError, match="choose one of read, write"):
            access.add_token(connection, "b", "all")


def test_lengths_are_kept_once(opened: Opener) -> None:
    store = opened()
    lengths = np.array([5, 1, 700], np.int64)
    rows = [catalogue.write_lengths(store, lengths) for _ in range(2)]
    assert rows[0] == rows[1]
    with store.writing() as connection:
        for row in rows:
            catalogue.put_lengths(connection, row)
    assert np.load(catalogue.lengths_path(store, rows[0]["id"])).tolist() == lengths.tolist()


def test_a_newer_schema_is_refused(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        connection.execute(update(schema.version).values(version=len(MIGRATIONS) + 1))
    with pytest.raises(StoreError, match="has schema 3, this seqplan knows 2"):
        opened()


def test_a_locked_database_is_unavailable(tmp_path: Path) -> None:
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


def test_a_store_of_the_first_version_is_brought_to_this_one(opened: Opener) -> None:
    store = opened()
    later = {
        "jobs": ("continues", "first_step", "max_len", "first_epoch", "first_cursor"),
        "plans": ("epoch", "cursor"),
        "lengths": ("kind",),
    }
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        jobs.add_plan(connection, "j", StoredPlan(0, "sha256:x", "{}"), 1.0)
        row = catalogue.write_lengths(store, np.array([5], np.int64))
        catalogue.put_lengths(connection, row)
        for table, columns in later.items():
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute(update(schema.version).values(version=1))
    store = opened()
    with store.reading() as connection:
        job = catalogue.get(connection, schema.jobs, "j")
        assert job is not None
        assert (job["first_step"], job["continues"], job["max_len"]) == (0, None, None)
        assert jobs.known_state(connection, job, 5) == SamplerState(0, 0, 0)
        lengths = catalogue.get(connection, schema.lengths, row["id"])
        assert lengths is not None
        assert lengths["kind"] == "sequences"
    opened()


def test_a_removed_job_leaves_nothing(opened: Opener) -> None:
    store = opened()
    kept = (schema.batches, schema.plans, schema.acks, schema.measurements, schema.answers)

    def fill(connection: Connection, job: str) -> None:
        jobs.add_job(connection, {**JOB, "id": job})
        jobs.add_batches(connection, job, [Batch(0, (1,), (2,))])
        jobs.add_plan(connection, job, StoredPlan(0, "sha256:x", "{}"), 1.0)
        say(connection, job)
        for path in (f"/v1/jobs/{job}/batches", "/v1/jobs"):
            answer = access.Answer("ab", 201, f'{{"id": "{job}", "proposal": "p"}}')
            access.keep_answer(connection, path, job, answer)

    def say(connection: Connection, job: str) -> None:
        jobs.acknowledge(connection, [{"job": job, "step": 0, "rank": 0, "digest": "sha256:x"}])
        jobs.add_measurements(connection, [{"job": job, "step": 0, "rank": 0, "measured_ms": 5.0}])

    def rows(connection: Connection) -> list[list[str]]:
        named = [table.c["key" if table is schema.answers else "job"] for table in kept]
        return [sorted(connection.execute(select(column)).scalars()) for column in named]

    with store.writing() as connection:
        for job in ("j", "J", "j_", "j2"):
            fill(connection, job)
        before = rows(connection)
        assert jobs.remove_job(connection, "j_")
        assert rows(connection) == [[job for job in found if job != "j_"] for found in before]
        assert not jobs.remove_job(connection, "j_")
        # What comes late of a removed job is not kept, so that another may have its name.
        say(connection, "j_")
        assert rows(connection) == [[job for job in found if job != "j_"] for found in before]
        other = catalogue.get(connection, schema.jobs, "j2")
        assert other is not None
        assert jobs.still_wanted(connection, other)
        assert not jobs.still_wanted(connection, {**other, "proposal": "another"})
        assert not jobs.still_wanted(connection, {**other, "id": "j_"})


def test_what_is_used_is_not_removed(opened: Opener) -> None:
    store = opened()
    row = catalogue.write_lengths(store, np.array([5, 6], np.int64))
    path = catalogue.lengths_path(store, row["id"])
    with store.writing() as connection:
        catalogue.put_lengths(connection, row)
        catalogue.put_proposal(connection, "p", {"lengths": row["id"]}, None)
        jobs.add_job(connection, {**JOB, "lengths": row["id"]})
    with pytest.raises(InUse, match="job j uses it"):
        catalogue.remove_lengths(store, row["id"])
    with store.writing() as connection, pytest.raises(InUse, match="proposal p: job j uses it"):
        catalogue.remove_proposal(connection, "p")
    with store.writing() as connection:
        jobs.remove_job(connection, "j")
    with pytest.raises(InUse, match="proposal p is being made from them"):
        catalogue.remove_lengths(store, row["id"])
    assert path.exists()
    with store.writing() as connection:
        assert catalogue.remove_proposal(connection, "p")
        assert not catalogue.remove_proposal(connection, "p")
    assert catalogue.remove_lengths(store, row["id"])
    assert not catalogue.remove_lengths(store, row["id"])
    assert list(path.parent.iterdir()) == []
