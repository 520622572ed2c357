"""The watch over calibration: a line in the log once per change of state, and gauges for
scrapers."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from measuring_ranks import measure as report
from measuring_ranks import plan_of
from service_process import serving_here, wait_until
from sqlalchemy import Connection
from stocked_service import stock

from seqplan import Plan, from_json, to_json
from seqplan.api.rest.state.metrics import Metrics
from seqplan.api.service import plan_summary
from seqplan.api.service.calibration_watch import CalibrationWatch, JobCalibration
from seqplan.api.service.plan_summary import PlanSummaries, PlanSummary
from seqplan.api.service.service import Service
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import remove_job
from seqplan.api.store.tables.measurements import MeasurementRow, add_measurements
from seqplan.api.store.tables.plans import digests, plan_lines
from seqplan.costs.fit.measurements import measurable
from seqplan.plans.load import PhaseLoad

STEPS = 14
GOLDEN = [
    line
    for path in sorted((Path(__file__).parents[2] / "plans" / "golden").glob("*.jsonl"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Plan]]:
    """The store that a service left which planned a job, and the plans."""
    folder = tmp_path_factory.mktemp("left")
    with serving_here(folder / "s.db") as served:
        job = stock(served).job("job", STEPS, look_ahead=STEPS)
        plans = [plan_of(served, job, step) for step in range(STEPS)]
    return folder, plans


@pytest.fixture
def planned(left: tuple[Path, list[Plan]], tmp_path: Path) -> Iterator[tuple[Store, list[Plan]]]:
    """A copy of that store, open."""
    folder, plans = left
    shutil.copytree(folder, tmp_path / "copy")
    store = Store(str(tmp_path / "copy" / "s.db"))
    yield store, plans
    store.close()


def measure(store: Store, plans: list[Plan], factor: float) -> None:
    with store.writing() as connection:
        for plan in plans:
            for pipeline in plan.pipelines:
                took_ms = factor * sum(batch.cost_ms for batch in pipeline.micro_batches)
                for rank in pipeline.ranks if took_ms else ():
                    row = MeasurementRow("job", plan.step, rank, took_ms)
                    add_measurements(connection, [row])


def gauges(store: Store, watch: CalibrationWatch) -> list[str]:
    """Return the metrics of calibration."""
    lines = Metrics(Service(store), watch).text().splitlines()
    return [line for line in lines if line.startswith("seqplan_calibration_")]


def test_changes_are_logged_once(
    planned: tuple[Store, list[Plan]], caplog: pytest.LogCaptureFixture
) -> None:
    store, plans = planned
    watch = CalibrationWatch(store, PlanSummaries())
    caplog.set_level(logging.INFO, "seqplan.calibration")

    def messages() -> list[str]:
        watch.look()
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    assert messages() == []
    assert gauges(store, watch) == []
    measure(store, plans[:-2], 1.3)
    slower = messages()
    assert slower
    assert all("slower than predicted (median)" in line for line in slower)
    assert len({line.split(":")[1] for line in slower}) == len(slower)
    lines = gauges(store, watch)
    assert any(line.startswith('seqplan_calibration_error{job="job",scheme="') for line in lines)
    assert sum(line.startswith("seqplan_calibration_warning{") for line in lines) >= len(slower)
    assert sum(
        line.startswith("seqplan_calibration_warning{") and line.endswith(" 1.0") for line in lines
    ) == len(slower)
    assert messages() == []  # nothing new was measured
    measure(store, plans[-2:-1], 1.3)
    assert messages() == []  # it is as it was
    measure(store, plans, 1.0)
    assert sorted(line.split(":")[1].split()[0] for line in messages()) == sorted(
        line.split(":")[1].strip() for line in slower
    )
    assert not any(
        line.startswith("seqplan_calibration_warning{") and line.endswith(" 1.0")
        for line in gauges(store, watch)
    )


def test_a_removed_job_is_reported_no_more(planned: tuple[Store, list[Plan]]) -> None:
    store, plans = planned
    watch = CalibrationWatch(store, PlanSummaries())
    watch.look()
    measure(store, plans, 1.3)
    watch.look()
    assert any('job="job"' in line for line in gauges(store, watch))
    with store.writing() as connection:
        assert remove_job(connection, "job")
    watch.look()
    assert not any('job="job"' in line for line in gauges(store, watch))


def test_a_judgement_is_kept_until_something_is_measured(planned: tuple[Store, list[Plan]]) -> None:
    store, plans = planned
    watch = CalibrationWatch(store, PlanSummaries())

    def judged() -> JobCalibration:
        with store.reading() as connection:
            return watch.calibration_of(connection, "job")

    measure(store, plans, 1.1)
    first = judged()
    assert all(scheme.bias == pytest.approx(0.1) for scheme in first.schemes)
    assert first.schemes
    assert judged() is first
    measure(store, plans, 1.2)  # the same steps and ranks: a later figure replaces an earlier one
    assert all(scheme.bias == pytest.approx(0.2) for scheme in judged().schemes)


def test_a_summary_is_that_of_the_plan(planned: tuple[Store, list[Plan]]) -> None:
    """Read without its sequences, a plan has the same summary of its pipelines."""
    plain = planned[1][0]
    slow = replace(plain.pipelines[0], slowdown=1.5)
    load = PhaseLoad("vision", tuple(plain.lengths), (1.0,) * len(plain.lengths), 0.5)
    others = [
        replace(plain, pipelines=(slow, *plain.pipelines[1:])),
        replace(plain, loads=(load,)),
        replace(plain, shapes=(max(plain.lengths),)),
    ]
    for plan in (*planned[1], *others, *(from_json(line) for line in GOLDEN)):
        summary = PlanSummary.from_line(to_json(plan), {})
        assert summary == PlanSummary.from_plan(plan, len(plan.ids))
        assert (summary.sequences, summary.tokens) == (len(plan.ids), plan.tokens)
        wanted = [
            (e.scheme, list(e.ranks), e.micro_batches, e.predicted_ms) for e in measurable(plan)
        ]
        summaries = [
            (e.scheme, list(e.ranks), e.micro_batches, e.predicted_ms) for e in summary.measurable
        ]
        assert summaries == wanted
        assert summary.pipelines >= len(wanted)


def test_looks_by_itself_until_stopped(planned: tuple[Store, list[Plan]]) -> None:
    store, plans = planned
    watch = CalibrationWatch(store, PlanSummaries(), every_s=0.01)
    watch.look()
    measure(store, plans, 1.3)
    watch.start()
    try:
        for _ in range(6000):
            if any(line.endswith(" 1.0") for line in gauges(store, watch)):
                break
            watch._stopping.wait(0.01)
        else:
            pytest.fail("the watch has not looked")
    finally:
        watch.stop()


def test_summaries_are_read_once_and_forgotten_in_order(
    planned: tuple[Store, list[Plan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plans = planned
    summaries, read = PlanSummaries(most=2), []

    def read_lines(connection: Connection, job: str, steps: list[int]) -> dict[int, str]:
        read.extend([steps] if steps else [])
        return plan_lines(connection, job, steps)

    monkeypatch.setattr(plan_summary, "plan_lines", read_lines)

    def predictions(*steps: int) -> list[float]:
        with store.reading() as connection:
            read_now = summaries.of(connection, "job", digests(connection, "job", steps))
        return [read_now[step].predicted_ms for step in steps]

    assert predictions(0, 1) == [plans[0].predicted_ms, plans[1].predicted_ms]
    assert predictions(0) == [plans[0].predicted_ms]
    assert predictions(0, 2) == [plans[0].predicted_ms, plans[2].predicted_ms]
    assert predictions(0, 1) == [plans[0].predicted_ms, plans[1].predicted_ms]
    assert read == [[0, 1], [2], [1]]
    # Of a plan that was at hand nothing is read.
    with store.reading() as connection:
        (digest,) = digests(connection, "job", [2]).values()
    summaries.keep(digest, PlanSummary.from_plan(plans[2], len(plans[2].ids)))
    assert predictions(2, 1) == [plans[2].predicted_ms, plans[1].predicted_ms]
    assert read == [[0, 1], [2], [1]]


def test_the_service_logs_calibration_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CalibrationWatch.__init__, "__defaults__", (0.1,))
    with serving_here(tmp_path / "s.db") as served:
        slower = stock(served).job("slower", 2 * STEPS, look_ahead=STEPS)
        report(served, slower, range(STEPS), 1.3)
        wait_until(lambda: "seqplan.calibration" in {record.name for record in caplog.records})
    record = next(record for record in caplog.records if record.name == "seqplan.calibration")
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("job slower: ")
    assert "slower than predicted (median)" in record.getMessage()
