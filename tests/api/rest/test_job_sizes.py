"""Jobs with too many GPUs: rejected, and harmless if an older release took one."""

import json
from pathlib import Path
from typing import Any

from command_line import call, complaint
from planned_files import PlannedFiles
from service_process import serving_here, wait_until
from sqlalchemy import create_engine, text
from stocked_service import Stocked, change_rows, stock

from seqplan.api.store.rows import JobRow
from seqplan.api.store.tables.jobs import add_job
from seqplan.planner.workload import MOST_GPUS
from seqplan.plans.format.canonical import canonical_json, digest_of

ABSURD = 2**53 - 1
MESSAGE = f"gpus must be {MOST_GPUS} or fewer, not {ABSURD}"


def _with_gpus(document: dict[str, Any], gpus: int) -> dict[str, Any]:
    fields = {name: value for name, value in document.items() if name != "digest"}
    fields["gpus"] = gpus
    return {**fields, "digest": digest_of(canonical_json(fields))}


def test_a_proposal_of_too_many_gpus_is_rejected(stocked: Stocked) -> None:
    served = stocked.served
    path = "/v1/proposals/documents"
    document = served.ok("GET", f"/v1/proposals/{stocked.proposal}/document")
    problem = served.problem("POST", path, _with_gpus(document, MOST_GPUS + 1))
    assert f"gpus must be {MOST_GPUS} or fewer" in problem["detail"]
    request = {"profile": "llama-7b-a800-80gb", "lengths": stocked.lengths, "max_len": 4096}
    problem = served.problem("POST", "/v1/proposals", {**request, "gpus": ABSURD})
    assert "gpus" in problem["detail"]
    assert str(MOST_GPUS) in problem["detail"]
    # As many as are allowed are planned for.
    largest = served.ok("POST", path, _with_gpus(document, MOST_GPUS))["id"]
    served.ok("POST", "/v1/jobs", {"id": "largest", "proposal": largest})
    assert len(served.ok("GET", "/v1/jobs/largest")["acknowledged"]) == MOST_GPUS
    assert served.send("DELETE", "/v1/jobs/largest").status == 204


def test_the_command_line_says_so_in_a_line(dense: PlannedFiles, output: Path) -> None:
    options = ("--profile", dense.profile, "--gpus", ABSURD, dense.lengths)
    assert MESSAGE in complaint(call("propose", *options, "--max-len", 4096, "-o", output))
    job = output.with_name("job.toml")
    job.write_text(
        f'profile = "{dense.profile}"\nlengths = "{dense.lengths}"\ngpus = {ABSURD}\n'
        "max_len = 4096\nsteps = 3\n"
    )
    assert complaint(call("sidecar", "--job", job)) == f"{job}: {MESSAGE}"
    proposal = output.with_name("absurd.json")
    proposal.write_text(json.dumps(_with_gpus(json.loads(dense.proposal.read_text()), ABSURD)))
    batches = output.with_name("batches.jsonl")
    batches.write_text('{"step":0,"ids":[1],"lengths":[5]}\n')
    options = ("--proposal", proposal, batches, "-o", output)
    assert MESSAGE in complaint(call("plan", *options))


def test_a_store_that_holds_such_a_job_starts(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stock(served).job("brick", 3)
    absurd = f"UPDATE jobs SET world_size = {ABSURD}, state = 'planning'"
    change_rows(tmp_path / "s.db", absurd)
    with serving_here(tmp_path / "s.db") as served:
        row = served.settled("/v1/jobs/brick", "planning")
        assert row["state"] == "failed"
        assert f"{ABSURD} GPUs are more than the {MOST_GPUS}" in row["error"]
        assert served.ok("GET", "/v1/progress")["items"][0]["state"] == "failed"
        failed = b'seqplan_jobs{state="failed"} 1.0'
        wait_until(lambda: failed in served.send("GET", "/metrics").body)
        assert served.ok("POST", "/v1/jobs/brick/restart")["state"] == "planning"
        assert served.settled("/v1/jobs/brick", "planning")["state"] == "failed"
        assert served.send("DELETE", "/v1/jobs/brick").status == 204


def test_other_services_of_its_store_go_on(postgresql_url: str, tmp_path: Path) -> None:
    with serving_here(postgresql_url, tmp_path) as served:
        stocked = stock(served)
        engine = create_engine(postgresql_url)
        brick = JobRow(
            id="brick", proposal=stocked.proposal, seed=0, look_ahead=8, world_size=ABSURD
        )
        engine = engine.execution_options(origin="another service")
        with engine.begin() as connection:
            add_job(connection, brick)  # which notifies the service
        assert served.settled("/v1/jobs/brick", "planning")["state"] == "failed"
        # It still gets notices of others' jobs.
        with engine.begin() as connection:
            connection.execute(text("UPDATE jobs SET id = 'removed' WHERE id = 'brick'"))
            add_job(connection, JobRow(**{**vars(brick), "id": "next", "world_size": 4}))
        engine.dispose()
        push = {"batches": [{"step": 0, "ids": [1], "lengths": [100]}], "end": True}
        served.ok("POST", "/v1/jobs/next/batches", push)
        assert served.send("GET", "/v1/jobs/next/plans/0?wait=60").status == 200
