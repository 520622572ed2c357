"""Steps that all ranks did long ago expire, and a long job's store stays small."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from seqplan.api.service.upkeep import Keeping, Upkeep
from seqplan.api.store import schema
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import acks, batches, jobs, measurements, plans
from seqplan.api.store.tables.acks import AckRow
from seqplan.api.store.tables.expiry import STATE_EVERY, Retention
from seqplan.api.store.tables.measurements import MeasurementRow
from seqplan.api.store.tables.plans import StoredPlan
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import SamplerState

WORLD = 2
JOB = JobRow(id="j", proposal="p", seed=0, look_ahead=8, world_size=WORLD)
Opener = Callable[[], Store]


@pytest.fixture(autouse=True)
def whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all steps expire in one look, on a busy machine too."""
    monkeypatch.setattr("seqplan.api.service.upkeep._PASS_S", 600.0)


def _run_steps(store: Store, first: int, last: int, line: str) -> None:
    """Plan, acknowledge and measure steps, as a job does; the last rank is five steps behind."""
    with store.writing() as connection:
        plan = {"job": jobs.job_key(connection, "j"), "digest": "sha256:x", "line": line}
        plan |= {"planning_ms": 1.0, "epoch": 0}
        rows = [{**plan, "step": step, "cursor": 10 * step} for step in range(first, last)]
        connection.execute(schema.plans.insert(), rows)
        batches.add_batches(
            connection, "j", [Batch(step, (1,), (2,)) for step in range(first, last)]
        )
        done = [(last - 1, 0), (max(0, last - 6), 1)]
        acks.acknowledge(connection, [AckRow("j", step, rank) for step, rank in done])
        times = [
            MeasurementRow("j", step, rank, 1.0)
            for step in range(first, last)
            for rank in range(WORLD)
        ]
        measurements.add_measurements(connection, times)


def _upkeep(store: Store, retention: Retention) -> Upkeep:
    keeping = Keeping(retention=retention)
    return Upkeep(
        store, keeping, abandon=lambda job: None, remove=lambda job: None, take_requests=dict
    )


def test_a_window_behind_the_slowest_rank_is_kept(opened: Opener) -> None:
    store = opened()
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
    _run_steps(store, 0, 1000, "{}")
    _upkeep(store, Retention(steps=100, measurements=40, least_measured=10)).look()
    slowest = 994
    with store.reading() as connection:
        row = get(connection, JobRow, "j")
        assert plans.list_planned_steps(connection, "j") == [*range(slowest - 99, 1000)]
        assert (row.kept_from, row.expired_steps) == (slowest - 99, slowest - 99)
        assert [batch.step for batch in batches.batches_after(connection, "j", -1, 2000)] == [
            *range(slowest - 99, 1000)
        ]
        measured = measurements.read_measurements_since(connection, "j", 0)
        assert [*measured] == [*range(slowest - 19, 1000)]
        assert acks.last_acknowledged(connection, "j", WORLD) == [999, slowest]
        # The sampler's states are near any step that a checkpoint may be of.
        for step in (0, 5, 600, slowest - 100, slowest):
            state = plans.read_latest_state(connection, row, step)
            assert step - STATE_EVERY < state.step <= step
            assert state == SamplerState(state.step, 0, 10 * state.step)


@pytest.mark.parametrize("behind", [None, 3])
def test_nothing_expires_before_every_rank_has_done_it(opened: Opener, behind: int | None) -> None:
    store = opened()
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
        for step in range(50):
            plans.add_plan(connection, "j", StoredPlan(step, "sha256:x", "{}"), 1.0)
        acks.acknowledge(connection, [AckRow("j", 49, 0)])
        if behind is not None:
            acks.acknowledge(connection, [AckRow("j", behind, 1)])
    _upkeep(store, Retention(steps=2, least_measured=1)).look()
    with store.reading() as connection:
        first = 0 if behind is None else behind - 1
        assert plans.list_planned_steps(connection, "j") == [*range(first, 50)]


def test_the_store_of_twenty_thousand_steps_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of 1 KB each, which are 20 MB, with times and batches."""
    monkeypatch.setattr("seqplan.api.service.upkeep.EXPIRE_S", 0.0)
    path, steps, at_once = tmp_path / "s.db", 20_000, 2500
    store = Store(str(path))
    with store.writing() as connection:
        jobs.add_job(connection, JOB)
    upkeep = _upkeep(store, Retention(steps=1000))
    sizes = []
    for first in range(0, steps, at_once):
        _run_steps(store, first, first + at_once, "x" * 1000)
        upkeep.look()
        sizes.append(path.stat().st_size)
    with store.reading() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (schema.plans, schema.ranks, schema.measurements, schema.sampler_states)
        ]
    store.close()
    assert counts == [1005, WORLD, WORLD * 1005, len(range(0, steps - 1005, STATE_EVERY))]
    assert max(sizes) < 16 << 20
    assert sizes[-1] < 1.2 * sizes[4]
