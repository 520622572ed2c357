"""Names of jobs by one rule everywhere; tokens listed and revoked next to a running service."""

from pathlib import Path

import pytest
from command_line import Outcome, call, complaint, succeeded
from planned_files import PlannedFiles
from service_process import serving_here, wait_until
from stocked_service import Stocked

from seqplan.api.store.store import Store

BAD_IDS = [".", "..", ".hidden", "a/b", "a b", "", "a" * 129, "a\n", '"} 1\nevil{job="y']


@pytest.mark.parametrize("name", BAD_IDS)
def test_a_job_that_no_path_can_name(stocked: Stocked, tmp_path: Path, name: str) -> None:
    problem = stocked.served.problem("POST", "/v1/jobs", {"id": name, "proposal": stocked.proposal})
    assert problem["detail"].startswith("body.id: ")
    job = tmp_path / "job.toml"
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    job.write_text(
        f'job = "{quoted}"\nprofile = "p"\nlengths = "l"\ngpus = 1\nmax_len = 1\nsteps = 1\n'
    )
    message = complaint(call("sidecar", "--job", job))
    wanted = "job: must be 1 to 128 of " if name else "job is empty"
    assert message.startswith(f"{job}: {wanted}")


def _tokens(store: Path, *more: str) -> Outcome:
    return call("serve", "--store", store, *more)


@pytest.mark.parametrize("name", ["a\nb", "a\0b", " a", "a" * 129])
def test_a_token_that_no_list_can_name(tmp_path: Path, name: str) -> None:
    message = complaint(_tokens(tmp_path / "s.db", "--add-token", name))
    assert message.startswith("a token's name must be 1 to 128 printable characters")
    assert succeeded(_tokens(tmp_path / "s.db", "--list-tokens")) == ""


@pytest.mark.parametrize("option", [("--list-tokens",), ("--revoke-token", "t")])
def test_a_store_that_does_not_exist_has_no_tokens(tmp_path: Path, option: tuple[str]) -> None:
    path = tmp_path / "mistyped.db"
    wanted = f"{path}: no such store. Name the file that serve --store has"
    assert complaint(_tokens(path, *option)) == wanted
    assert list(tmp_path.iterdir()) == []


def test_tokens_come_and_go_while_a_service_runs(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    read, write = (
        succeeded(_tokens(path, "--add-token", scope, "--scope", scope)).strip()
        for scope in ("read", "write")
    )
    with serving_here(path) as served:

        def allowed(token: str) -> bool:
            reply = served.send("GET", "/v1/jobs", headers={"Authorization": f"Bearer {token}"})
            assert reply.status in (200, 401)
            return reply.status == 200

        def soon(token: str, wanted: bool) -> None:
            wait_until(lambda: allowed(token) == wanted)

        assert allowed(read)
        assert succeeded(_tokens(path, "--list-tokens")) == "read\tread\nwrite\twrite\n"
        assert succeeded(_tokens(path, "--revoke-token", "read")) == ""
        soon(read, False)
        assert allowed(write)
        soon(succeeded(_tokens(path, "--add-token", "new")).strip(), True)
        message = complaint(_tokens(path, "--revoke-token", "read"))
        assert message == "there is no token 'read'; there are 'new', 'write'"
        # Without any token left nothing is open.
        for name in ("new", "write"):
            succeeded(_tokens(path, "--revoke-token", name))
        soon(write, False)
        assert served.send("GET", "/v1/jobs").status == 401
        assert served.send("GET", "/readyz").status == 200


def test_labels_of_metrics_are_escaped(store: Store, dense: PlannedFiles) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from seqplan.api.rest.state.metrics import Metrics
    from seqplan.api.service.calibration_watch import CalibrationWatch
    from seqplan.api.service.plan_summary import PlanSummaries
    from seqplan.api.service.service import Service
    from seqplan.api.store.rows import JobRow
    from seqplan.api.store.tables import proposals
    from seqplan.api.store.tables.jobs import add_job

    odd = 'x"} 1\nevil{job="y'
    with store.writing() as connection:
        proposals.put_proposal(connection, "p", {}, dense.proposal.read_text())
        add_job(connection, JobRow(id=odd, proposal="p", seed=0, look_ahead=1, world_size=4))
    service = Service(store)
    service.start()  # the job waits for batches
    text = Metrics(service, CalibrationWatch(store, PlanSummaries())).text()
    service.stop()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["seqplan_look_ahead_steps"].samples[0].labels == {"job": odd}
    assert "evil" not in families
