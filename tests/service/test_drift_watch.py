"""The watch over drift: a line in the log once per change of state, and gauges for scrapers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from measuring_ranks import plan_of
from service_process import serving
from stocked_service import stock

from seqplan.api.drift_watch import DriftWatch
from seqplan.api.plan_summaries import PlanSummaries
from seqplan.api.store import jobs
from seqplan.api.store.store import Store
from seqplan.plans.plan import Plan

STEPS = 14


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[tuple[Store, list[Plan]]]:
    """The store of a service that has planned a job and ended."""
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        job = stock(served).job("job", STEPS, look_ahead=STEPS)
        plans = [plan_of(served, job, step) for step in range(STEPS)]
    store = Store(str(tmp_path / "s.db"))
    yield store, plans
    store.close()


def measure(store: Store, plans: list[Plan], factor: float) -> None:
    with store.writing() as connection:
        for plan in plans:
            for pipeline in plan.pipelines:
                took_ms = factor * sum(batch.cost_ms for batch in pipeline.micro_batches)
                for rank in pipeline.ranks if took_ms else ():
                    jobs.add_measurement(connection, "job", plan.step, rank, took_ms)


def test_told_once_per_change(
    planned: tuple[Store, list[Plan]], caplog: pytest.LogCaptureFixture
) -> None:
    store, plans = planned
    watch = DriftWatch(store, PlanSummaries())
    caplog.set_level(logging.INFO, "seqplan.drift")

    def told() -> list[str]:
        watch.look()
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    assert told() == []
    assert not any(line.startswith("seqplan_") for line in watch.metrics())
    measure(store, plans[:-2], 1.3)
    slower = told()
    assert slower
    assert all("slower than predicted (median)" in line for line in slower)
    assert len({line.split(":")[1] for line in slower}) == len(slower)
    lines = list(watch.metrics())
    assert any(line.startswith('seqplan_drift_error{job="job",scheme="') for line in lines)
    assert sum(line.startswith("seqplan_drift_warning{") for line in lines) >= len(slower)
    assert sum(
        line.startswith("seqplan_drift_warning{") and line.endswith(" 1") for line in lines
    ) == len(slower)
    assert told() == []  # nothing new was measured
    measure(store, plans[-2:-1], 1.3)
    assert told() == []  # it is as it was
    measure(store, plans, 1.0)
    assert sorted(line.split(":")[1].split()[0] for line in told()) == sorted(
        line.split(":")[1].strip() for line in slower
    )
    assert not any(
        line.startswith("seqplan_drift_warning{") and line.endswith(" 1")
        for line in watch.metrics()
    )


def test_looks_by_itself_until_stopped(planned: tuple[Store, list[Plan]]) -> None:
    store, plans = planned
    watch = DriftWatch(store, PlanSummaries())
    watch.look()
    measure(store, plans, 1.3)
    watch.start(every_s=0.01)
    try:
        for _ in range(6000):
            if any(line.endswith(" 1") for line in watch.metrics()):
                break
            watch._ending.wait(0.01)
        else:
            pytest.fail("the watch has not looked")
    finally:
        watch.stop()


def test_summaries_are_read_once_and_forgotten_in_order(
    planned: tuple[Store, list[Plan]],
) -> None:
    store, plans = planned
    with store.reading() as connection:
        lines = {}
        for step in range(3):
            stored = jobs.get_plan(connection, "job", step)
            assert stored is not None
            lines[step] = (stored.digest, stored.line)
    summaries, read = PlanSummaries(kept=2), []

    def ask(*steps: int) -> list[float]:
        def wanted(missing: object) -> dict[int, str]:
            read.append(list(missing))  # type: ignore[call-overload]
            return {step: lines[step][1] for step in read[-1]}

        found = summaries.of({step: lines[step][0] for step in steps}, wanted)
        return [found[step].predicted_ms for step in steps]

    assert ask(0, 1) == [plans[0].predicted_ms, plans[1].predicted_ms]
    assert ask(0) == [plans[0].predicted_ms]
    assert ask(0, 2) == [plans[0].predicted_ms, plans[2].predicted_ms]
    assert ask(0, 1) == [plans[0].predicted_ms, plans[1].predicted_ms]
    assert read == [[0, 1], [2], [1]]
