"""A job is begun without reading its data in the transaction; missing files are reported."""

from pathlib import Path

import pytest
from planned_files import PlannedFiles
from service_process import serving_here
from stocked_service import DATA, stock

from seqplan.api.rest.payloads.bodies import NewJob
from seqplan.api.rest.routes.new_job import job_row, look_at_data
from seqplan.api.service.service import Service
from seqplan.api.store.errors import ArrayMissing, StoreUnavailable
from seqplan.api.store.store import Store
from seqplan.api.store.tables.jobs import add_job
from seqplan.api.store.tables.lengths import lengths_path, put_lengths, write_lengths
from seqplan.api.store.tables.plans import StoredPlan, add_plan
from seqplan.api.store.tables.proposals import put_proposal
from seqplan.costs.lengths import read_lengths


def test_the_transaction_reads_no_data(store: Store, dense: PlannedFiles) -> None:
    lengths = write_lengths(store, read_lengths([dense.lengths]).values)
    with store.writing() as connection:
        put_lengths(connection, lengths)
        put_proposal(connection, "p", {}, dense.proposal.read_text())
    service = Service(store)
    new = NewJob(id="first", proposal="p", lengths=lengths.id, steps=5)
    again = NewJob.model_validate(
        {"id": "on", "proposal": "p", "continues": {"job": "first", "step": 3}}
    )
    with store.writing():  # nor does the look want the turn to write
        look = look_at_data(service, new)
    with store.writing() as connection:
        add_job(connection, job_row(service, connection, new, look))
        for step in range(3):
            add_plan(connection, "first", StoredPlan(step, "sha256:x", "{}"), 1.0)
    look_on = look_at_data(service, again)
    lengths_path(store, lengths.id).unlink()
    with store.writing() as connection:
        row = job_row(service, connection, again, look_on)
        assert (row.lengths, row.first_step, row.steps) == (lengths.id, 3, 5)
        assert row.first_cursor > 0
        # A look at other data does not count.
        with pytest.raises(StoreUnavailable, match="changed meanwhile"):
            job_row(service, connection, again.model_copy(update={"id": "other"}), look)
        with pytest.raises(ArrayMissing, match="upload the same data again"):
            job_row(service, connection, again, look_at_data(service, again))


def test_a_missing_file_is_a_conflict_with_its_fix(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        job = {"proposal": stocked.proposal, "lengths": stocked.lengths, "steps": 3}
        served.ok("POST", "/v1/jobs", {**job, "id": "begun", "look_ahead": 1})
        assert served.send("GET", "/v1/jobs/begun/plans/0?wait=60").status == 200
        path = tmp_path / "s.db.files" / "lengths" / f"{stocked.lengths}.npy"
        path.unlink()
        request = {"profile": "llama-7b-a800-80gb", "lengths": stocked.lengths, "gpus": 4}
        for method, where, body in (
            ("POST", "/v1/jobs", job),
            (
                "POST",
                "/v1/jobs",
                {"proposal": job["proposal"], "continues": {"job": "begun", "step": 1}},
            ),
            ("POST", "/v1/proposals", {**request, "max_len": 4096}),
        ):
            problem = served.problem(method, where, body, 409)
            assert problem["type"] == "urn:seqplan:problem:file-missing"
            assert "upload the same data again" in problem["detail"]
        assert served.ok("GET", f"/v1/lengths/{stocked.lengths}")["sequences"] == 32514
        assert served.ok("POST", "/v1/lengths", DATA.read_bytes())["id"] == stocked.lengths
        served.ok("POST", "/v1/jobs", job)
