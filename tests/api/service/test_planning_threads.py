"""Planning threads go on with slow readers; one that ends is reported and can be restarted."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from logged_service import serving_logged
from planned_files import PlannedFiles
from service_process import wait_until
from sqlalchemy import QueuePool, create_engine
from stocked_service import change_rows, stock

from seqplan.api.service.service import Service
from seqplan.api.store.errors import StoreUnavailable, outages
from seqplan.api.store.rows import JobRow, get
from seqplan.api.store.store import Store
from seqplan.api.store.tables import plans
from seqplan.api.store.tables.batches import add_batches
from seqplan.api.store.tables.jobs import add_job, settle_job
from seqplan.api.store.tables.proposals import put_proposal
from seqplan.planner.batches.batch import Batch

READERS = 20
"""More than the 15 connections that a pool hands out by default."""


def test_planning_continues_with_many_slow_readers(store: Store, dense: PlannedFiles) -> None:
    with store.writing() as connection:
        put_proposal(connection, "p", {}, dense.proposal.read_text())
        add_job(connection, JobRow(id="j", proposal="p", seed=0, look_ahead=2, world_size=4))
        add_batches(connection, "j", [Batch(0, (0,), (10,))])
        settle_job(connection, "j", last_step=0)
    service = Service(store)
    with ExitStack() as readers:
        for _ in range(READERS):
            connection = readers.enter_context(store.reading())
            assert get(connection, JobRow, "j") is not None
        service.start()

        def planned() -> bool:
            with store.reading() as connection:
                row = get(connection, JobRow, "j")
                assert row.state in ("planning", "planned"), row
                return row.state == "planned" and plans.last_planned(connection, "j") == 0

        wait_until(planned)
    service.stop()


def test_a_pool_that_has_run_dry_is_an_outage(tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path / 's.db'}",
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    only = engine.connect()
    with pytest.raises(StoreUnavailable, match="connections to the store are in use"), outages():
        engine.connect()
    only.close()
    engine.dispose()


def test_a_thread_that_ends_is_reported_and_restarted(tmp_path: Path) -> None:
    path, log = tmp_path / "s.db", tmp_path / "log"
    with serving_logged(log, "--store", path, "--port", 0) as served:
        served.ok("POST", "/v1/jobs", {"id": "lost", "proposal": stock(served).proposal})
        # Neither the plan nor that the job has failed can be kept.
        for name, when in (("plans", "INSERT ON plans"), ("jobs", "UPDATE OF state ON jobs")):
            reject = "BEGIN SELECT RAISE(ABORT, 'rejected'); END"
            change_rows(path, f"CREATE TRIGGER no_{name} BEFORE {when} {reject}")
        batches = [{"step": 0, "ids": [1], "lengths": [10]}]
        served.ok("POST", "/v1/jobs/lost/batches", {"batches": batches})
        wait_until(lambda: served.send("GET", "/readyz").status == 503)
        problem = served.problem("GET", "/readyz", status=503)
        assert problem["type"] == "urn:seqplan:problem:planning-ended"
        assert "job lost: planning ended: IntegrityError: " in problem["detail"]
        assert "POST /v1/jobs/lost/restart" in problem["detail"]
        metrics = served.send("GET", "/metrics").body.decode()
        assert "seqplan_threads_ended 1.0\n" in metrics
        assert "seqplan_planning_ends_total 1.0\n" in metrics
        assert served.send("GET", "/healthz").status == 200
        change_rows(path, "DROP TRIGGER no_plans", "DROP TRIGGER no_jobs")
        begun = {"id": "lost", "state": "planning", "step": 0}
        assert served.ok("POST", "/v1/jobs/lost/restart") == begun
        assert served.send("GET", "/v1/jobs/lost/plans/0?wait=60").status == 200
        assert served.send("GET", "/readyz").status == 200
        # One that is being planned is no failed one.
        assert served.problem("POST", "/v1/jobs/lost/restart", status=409)
    assert "job lost: planning ended: IntegrityError" in log.read_text()


def test_an_ended_thread_is_settled_and_others_go_on(tmp_path: Path) -> None:
    path, log = tmp_path / "s.db", tmp_path / "log"
    with serving_logged(log, "--store", path, "--port", 0) as served:
        stocked = stock(served)
        served.ok("POST", "/v1/jobs", {"id": "other", "proposal": stocked.proposal})
        served.ok("POST", "/v1/jobs", {"id": "lost", "proposal": stocked.proposal})
        lost = "NEW.job = (SELECT key FROM jobs WHERE id = 'lost')"
        reject = f"WHEN {lost} BEGIN SELECT RAISE(ABORT, 'rejected'); END"
        change_rows(path, f"CREATE TRIGGER no BEFORE INSERT ON plans {reject}")
        batches = {"batches": [{"step": 0, "ids": [1], "lengths": [10]}]}
        for job in ("lost", "other"):
            served.ok("POST", f"/v1/jobs/{job}/batches", batches)
        assert (
            "rejected"
            in served.problem("GET", "/v1/jobs/lost/plans/0?wait=60", status=424)["detail"]
        )
        assert served.send("GET", "/v1/jobs/other/plans/0?wait=60").status == 200
        assert served.send("GET", "/readyz").status == 200
    assert "job lost: planning failed: IntegrityError" in log.read_text()
