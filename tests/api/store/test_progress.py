"""Progress read from the store, for every database, compared with counts by hand."""

import json
import random

import pytest

from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables import acks, expiry, measurements, plans
from seqplan.api.store.tables.acks import AckRow
from seqplan.api.store.tables.jobs import add_job
from seqplan.api.store.tables.measurements import MeasurementRow
from seqplan.api.store.tables.plans import StoredPlan

WORLD = 5
STEPS = range(3, 60, 2)


def test_progress_equals_stored_acknowledgements(store: Store) -> None:
    rng = random.Random(0)
    measured: dict[tuple[int, int], float] = {}
    last_steps = [-1] * WORLD
    with store.writing() as connection:
        for job in ("job", "other"):
            job_row = JobRow(id=job, proposal="p", seed=0, look_ahead=2, world_size=WORLD)
            add_job(connection, job_row)
            for step in STEPS:
                plan = StoredPlan(step, f"sha256:{job}{step}", f"plan of {step}")
                plans.add_plan(connection, job, plan, step / 2)
        for rank in range(WORLD - 1):  # the last one sends nothing
            for step in rng.sample(STEPS, 12):
                acks.acknowledge(connection, [AckRow("job", step, rank)])
                last_steps[rank] = max(last_steps[rank], step)
        for _ in range(80):
            step, rank, took_ms = rng.choice(STEPS[:20]), rng.randrange(WORLD), rng.uniform(1, 9)
            row = MeasurementRow("job", step, rank, took_ms)
            measurements.add_measurements(connection, [row])
            measured[step, rank] = took_ms
        measurements.add_measurements(connection, [MeasurementRow("other", STEPS[-1], 0, 1e6)])
    steps = sorted({step for step, _ in measured})
    with store.reading() as connection:
        assert acks.last_acknowledged(connection, "job", WORLD) == last_steps
        assert acks.last_acknowledged(connection, "none", 1) == [-1]
        progress = acks.rank_progress(connection, "job", WORLD)
        assert (progress.slowest, progress.fastest) == (-1, max(last_steps))
        assert (progress.slowest_ranks, progress.count_slowest) == ((WORLD - 1,), 1)
        all_but_one = acks.rank_progress(connection, "job", WORLD - 1)
        slowest = min(last_steps[:-1])
        behind = tuple(rank for rank in range(WORLD - 1) if last_steps[rank] == slowest)
        assert (all_but_one.slowest, all_but_one.slowest_ranks) == (slowest, behind)
        without_lost = acks.rank_progress(connection, "job", WORLD, [WORLD - 1])
        assert (without_lost.slowest, without_lost.slowest_ranks) == (slowest, behind)
        assert acks.rank_progress(connection, "none", 9, [0, 2]).slowest_ranks == (1, *range(3, 9))
        for lost, last in ((None, -1), ([[WORLD - 1, None]], slowest)):
            job_row = JobRow(
                id="job", proposal="p", seed=0, look_ahead=2, world_size=WORLD,
                slowdown=lost and json.dumps(lost),
            )  # fmt: skip
            assert expiry.slowest_step(connection, job_row) == last
        assert progress.acknowledged_at is not None
        assert acks.rank_progress(connection, "none", 20).slowest_ranks == (*range(8),)
        for beyond in (-1, STEPS[0], STEPS[7] + 1, STEPS[-1]):
            wanted = sum(step > beyond for step in STEPS)
            assert plans.count_planned_beyond(connection, "job", beyond) == wanted
        page = plans.read_planned_page(connection, "job", STEPS[2], 9)
        assert [listed.step for listed in page] == list(STEPS[3:12])
        for listed in page:
            took = [ms for (step, _), ms in measured.items() if step == listed.step]
            assert (listed.digest, listed.planning_ms) == (
                f"sha256:job{listed.step}",
                listed.step / 2,
            )
            assert (listed.measured_ms, listed.ranks_measured) == (
                max(took, default=None),
                len(took),
            )
        assert plans.read_planned_page(connection, "job", STEPS[-1], 9) == []
        lines = plans.plan_lines(connection, "job", [*STEPS[:3], 1000])
        assert lines == {step: f"plan of {step}" for step in STEPS[:3]}
        assert plans.digests(connection, "job", STEPS[:1]) == {3: "sha256:job3"}
        assert measurements.last_measured_step(connection, "job") == steps[-1]
        assert measurements.last_measured_step(connection, "none") is None
        assert measurements.latest_measured_steps(connection, "job", 4) == steps[-4:]
        assert measurements.latest_measured_steps(connection, "none", 4) == []
        since = measurements.read_measurements_since(connection, "job", steps[-4])
        assert list(since) == steps[-4:]
        by_step_and_rank = {
            (step, rank): ms for step, ranks in since.items() for rank, ms in ranks.items()
        }
        assert by_step_and_rank == {key: ms for key, ms in measured.items() if key[0] >= steps[-4]}
        count, total = measurements.measurements_state(connection, "job", steps[-4])
        assert (count, total) == (
            len(by_step_and_rank),
            pytest.approx(sum(by_step_and_rank.values())),
        )
        assert measurements.measurements_state(connection, "none", 0) == (0, 0.0)
        rows, after = [], (0, -1)
        while page := measurements.measurements_page(connection, "job", after, 7):
            assert len(page) <= 7
            rows += page
            after = page[-1][:2]
        assert rows == [(*key, ms) for key, ms in sorted(measured.items())]


def test_more_steps_than_a_statement_may_name(store: Store) -> None:
    with store.writing() as connection:
        add_job(connection, JobRow(id="job", proposal="p", seed=0, look_ahead=2, world_size=1))
        for step in range(1200):
            plans.add_plan(connection, "job", StoredPlan(step, f"{step}", "line"), 1.0)
    with store.reading() as connection:
        wanted = {step: f"{step}" for step in range(1200)}
        assert plans.digests(connection, "job", range(1500)) == wanted
