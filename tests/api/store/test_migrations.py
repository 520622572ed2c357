"""Stores of other versions, for every database."""

from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import inspect, update

from seqplan.api.store import schema
from seqplan.api.store.errors import StoreError
from seqplan.api.store.migrations import MIGRATIONS
from seqplan.api.store.rows import JobRow, LengthsRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import jobs, lengths, plans
from seqplan.api.store.tables.acks import last_acknowledged
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.planner.batches.sampler import SamplerState

JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2)
Opener = Callable[[], Store]


def test_a_newer_schema_is_rejected(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        connection.execute(update(schema.version).values(version=len(MIGRATIONS) + 1))
    with pytest.raises(StoreError, match="has schema 8, this seqplan knows 7"):
        opened()


def test_a_store_of_the_first_version_is_brought_to_this_one(opened: Opener) -> None:
    store = opened()
    acks = (
        "CREATE TABLE acks (job VARCHAR(128), rank BIGINT, step BIGINT, digest VARCHAR(80), "
        "PRIMARY KEY (job, rank, step))"
    )
    later = {
        "jobs": ("continues", "first_step", "max_len", "first_epoch", "first_cursor"),
        "plans": ("epoch", "cursor"),
        "lengths": ("kind",),
    }
    later["jobs"] += ("key", "kept_from", "expired_steps", "asked_at")
    later["answers"] = ("at",)
    later["tokens"] = ("job", "expires_at")
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        plans.add_plan(connection, "j", StoredPlan(0, "sha256:x", "{}"), 1.0)
        row = lengths.write_lengths(store, np.array([5], np.int64))
        lengths.put_lengths(connection, row)
        connection.exec_driver_sql("UPDATE plans SET job = 'j'")
        connection.exec_driver_sql(acks)
        for rank, step in ((0, 0), (0, 1), (0, 2), (1, 0)):
            connection.exec_driver_sql(f"INSERT INTO acks VALUES ('j', {rank}, {step}, 'x')")
        for name in ("ranks", "sampler_states", "removals", "seqplan_store"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql("DROP INDEX ix_jobs_key")
        connection.exec_driver_sql("DROP INDEX answers_by_time")
        for table, columns in later.items():
            for column in columns:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute(update(schema.version).values(version=1))
    (store.files / "store-id").unlink()
    store = opened()
    assert (store.files / "store-id").exists()
    with store.reading() as connection:
        assert last_acknowledged(connection, "j", 3) == [2, 0, -1]
        assert plans.list_planned_steps(connection, "j") == []
        assert not inspect(connection).has_table("acks")
        job = get(connection, JobRow, "j")
        assert (job.first_step, job.continues, job.max_len) == (0, None, None)
        assert (job.state, job.kept_from, job.failed_step) == ("failed", 1, 1)
        assert job.error.endswith("Propose again and start a new job")
        assert plans.read_latest_state(connection, job, 5) == SamplerState(0, 0, 0)
        assert get(connection, LengthsRow, row.id).kind == "sequences"
    opened()
