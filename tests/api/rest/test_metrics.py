"""Metrics: names, labels and help, as dashboards rely on them."""

import pytest
from stocked_service import Stocked

from seqplan.api.rest.state.metrics import Metrics
from seqplan.api.service.calibration_watch import CalibrationWatch
from seqplan.api.service.plan_summary import PlanSummaries
from seqplan.api.service.service import Service
from seqplan.api.store.rows import JobRow
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job
from seqplan.costs.fit.calibration import CalibrationError
from seqplan.plans.scheme import Scheme

CALIBRATION = CalibrationError(
    scheme=Scheme(tp=2, pp=1, ulysses=1, ring=1),
    pipelines=12,
    median=0.25,
    p90=0.5,
    recent=0.125,
    bias=-0.125,
    stated=None,
    limit=0.05,
    warning="is slower",
)


@pytest.fixture(autouse=True)
def job(store: Store) -> None:
    """The store has a job that is being planned."""
    with store.writing() as connection:
        add_job(connection, JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=2))


def test_calibration_by_job_and_scheme(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CalibrationWatch(store, PlanSummaries())
    lines = Metrics(Service(store), watch).text().splitlines()
    help_and_type = [line for line in lines if "seqplan_calibration_" in line]
    assert help_and_type == [
        "# HELP seqplan_calibration_error Median of |measured - predicted| / predicted, latest.",
        "# TYPE seqplan_calibration_error gauge",
        "# HELP seqplan_calibration_bias Median of measured / predicted - 1, latest.",
        "# TYPE seqplan_calibration_bias gauge",
        "# HELP seqplan_calibration_limit What the error may be by the profile.",
        "# TYPE seqplan_calibration_limit gauge",
        "# HELP seqplan_calibration_warning 1 where the error has left its limit.",
        "# TYPE seqplan_calibration_warning gauge",
    ]
    monkeypatch.setattr(watch, "latest", lambda: [("j", CALIBRATION)])
    lines = Metrics(Service(store), watch).text().splitlines()
    labels = f'{{job="j",scheme="{CALIBRATION.scheme}"}}'
    assert [line for line in lines if line.startswith("seqplan_calibration_")] == [
        f"seqplan_calibration_error{labels} 0.125",
        f"seqplan_calibration_bias{labels} -0.125",
        f"seqplan_calibration_limit{labels} 0.05",
        f"seqplan_calibration_warning{labels} 1.0",
    ]


def test_figures_of_the_store_and_of_the_service(store: Store) -> None:
    service = Service(store)
    metrics = Metrics(service, CalibrationWatch(store, PlanSummaries()))
    service.upkeep.look()
    with store.writing() as connection:  # what a scrape does not read
        connection.exec_driver_sql("DROP TABLE plans")
        connection.exec_driver_sql("DROP TABLE jobs")
    service.counts["status 401"] += 3
    metrics.record_answer("/v1/jobs/j/plans/0", 0.002)
    lines = metrics.text().splitlines()
    for line in (
        'seqplan_jobs{state="planning"} 1.0',
        "seqplan_planning_seconds_count 0.0",
        "seqplan_acknowledgements_total 0.0",
        "seqplan_publications_total 0.0",
        'seqplan_requests_total{status="401"} 3.0',
        'seqplan_request_seconds_count{kind="plan"} 1.0',
        'seqplan_request_seconds_count{kind="other"} 0.0',
    ):
        assert line in lines


def test_counters_do_not_fall_when_a_job_is_removed(stocked: Stocked) -> None:
    served = stocked.served

    def counters() -> dict[str, float]:
        lines = served.send("GET", "/metrics").body.decode().splitlines()
        parts = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        ends = ("_total", "_count", "_sum")
        return {
            name: float(value) for name, value in parts if name.partition("{")[0].endswith(ends)
        }

    stocked.job("counted", 3)
    assert served.send("GET", "/v1/jobs/counted/plans/2?wait=30").status == 200
    before = counters()
    assert before["seqplan_planning_seconds_count"] >= 3
    assert before["seqplan_planning_seconds_sum"] > 0
    assert served.send("DELETE", "/v1/jobs/counted").status == 204
    after = counters()
    assert {name for name in before if after[name] < before[name]} == set()
