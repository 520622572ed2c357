"""The sidecar: one job from a file, with the plans that the command line makes."""

import re
from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from measuring_ranks import plan_of
from service_process import serving, wait_until
from stocked_service import DATA

from seqplan.planner.balance.slow_ranks import list_usual_ms

FILE = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
max_len = 4096
tokens = 8000
steps = 3
look_ahead = 3
port = 0
"""
LONG = FILE.replace("tokens = 8000", "tokens = 40000")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Where a test writes its job, next to the lengths."""
    np.save(tmp_path / "lengths.npy", np.load(DATA)[:3000])
    return tmp_path / "job.toml"


def planned_by_the_command_line(folder: Path, *options: str) -> list[str]:
    """Plans of the same job by ``propose``, with these last, and ``plan``."""
    proposal, plans = folder / "proposal.json", folder / "plans.jsonl"
    lengths = folder / "lengths.npy"
    job = ("--gpus", "4", "--max-len", "4096", "--tokens", "8000", *options, "-o", proposal)
    succeeded(call("propose", "--profile", "llama-7b-a800-80gb", lengths, *job))
    succeeded(call("plan", "--proposal", proposal, lengths, "--steps", "3", "-o", plans))
    return plans.read_text().splitlines()


def planned_by_the_sidecar(job_file: Path) -> list[str]:
    """Plans of the job's steps, requested from a sidecar."""
    with serving("--job", job_file, command="sidecar") as served:
        paths = [f"/v1/jobs/job/plans/{step}?wait=30" for step in range(3)]
        return [served.send("GET", path).body.decode() for path in paths]


def test_a_sidecar_plans_like_the_command_line(tmp_path: Path, job_file: Path) -> None:
    job_file.write_text(FILE)
    plans = planned_by_the_command_line(tmp_path)
    for _ in range(2):  # begun again, it goes on with what it has
        assert planned_by_the_sidecar(job_file) == plans
    for changed, difference in (
        (FILE.replace("steps = 3", "steps = 4"), "steps 3, not 4"),
        (FILE + 'execution = "static"\nseed = 1\n', "seed 0, not 1, execution none, not static"),
    ):
        job_file.write_text(changed)
        line = complaint(call("sidecar", "--job", job_file))
        assert f"has a job 'job' of other settings: {difference}. Restore them, or name" in line


def test_a_sidecar_prints_how_many_sequences_it_truncates(
    job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqplan.api.rest.server.serve", lambda *_: 0)
    job_file.write_text(FILE.replace("max_len = 4096", "max_len = 100"))
    truncated = int((np.load(job_file.with_name("lengths.npy")) > 100).sum())
    outcome = call("sidecar", "--job", job_file)
    assert outcome.err.splitlines()[-1] == f"{truncated:,} sequences truncated to 100 tokens."


def test_a_sidecar_plans_in_lockstep(tmp_path: Path, job_file: Path) -> None:
    job_file.write_text(LONG + 'execution = "lockstep"\nmicro_step_multiple = 2\n')
    micro_steps = ("--execution", "lockstep", "--micro-step-multiple", "2")
    plans = planned_by_the_command_line(tmp_path, "--tokens", "40000", *micro_steps)
    assert planned_by_the_sidecar(job_file) == plans


def test_no_other_user_removes_the_job_of_a_sidecar(tmp_path: Path, job_file: Path) -> None:
    token_file = tmp_path / "job.token"
    job_file.write_text(FILE)
    written = {"acks", "acks/many", "measurements", "restart"}
    with serving("--job", job_file, command="sidecar") as served:
        forbidden = [
            (method.upper(), re.sub(r"{\w+}", "job", path))
            for path, methods in served.ok("GET", "/openapi.json")["paths"].items()
            for method in methods
            if method != "get" and path.removeprefix("/v1/jobs/{job}/") not in written
        ]
        assert {method for method, _ in forbidden} == {"POST", "PUT", "DELETE"}
        assert served.send("GET", "/v1/jobs/job/plans/0?wait=30").status == 200
        for method, path in forbidden:
            assert "token_file" in served.problem(method, path, status=403)["detail"]
        served.ok("POST", "/v1/jobs/job/acks", {"step": 0, "rank": 0, "digest": None})
    job_file.write_text(FILE + 'token_file = "job.token"\n')
    tokens = []
    for _ in range(2):
        with serving("--job", job_file, command="sidecar") as served:
            tokens.append(token_file.read_text().strip())
            assert token_file.stat().st_mode & 0o777 == 0o600
            assert served.send("GET", "/v1/jobs/job/plans/0").status == 401
            assert served.send("DELETE", "/v1/jobs/job").status == 401
            with_token = {"Authorization": f"Bearer {tokens[-1]}"}
            plan = served.send("GET", "/v1/jobs/job/plans/0?wait=30", headers=with_token)
            assert plan.status == 200
    assert tokens[0] == tokens[1]


def test_a_job_made_anew_has_the_settings_of_its_file(job_file: Path) -> None:
    """Not those of a removed job whose proposal was the same."""
    with_token = FILE + 'token_file = "job.token"\n'
    job_file.write_text(with_token)
    with serving("--job", job_file, command="sidecar") as served:
        token = job_file.with_name("job.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert served.send("DELETE", "/v1/jobs/job", headers=headers).status == 204
    job_file.write_text(with_token.replace("steps = 3", "steps = 4"))
    for _ in range(2):
        with serving("--job", job_file, command="sidecar") as served:
            job = served.send("GET", "/v1/jobs/job", headers=headers).json
            assert job["steps"] == 4
    job_file.write_text(with_token)
    assert "settings: steps 4, not 3" in complaint(call("sidecar", "--job", job_file))


def test_sidecar_plans_for_costs_that_are_off(job_file: Path) -> None:
    job_file.write_text(FILE + "robust = 0.1\n")
    assert all('"robust":0.1' in plan for plan in planned_by_the_sidecar(job_file))


def test_sidecar_plans_for_a_trainer(tmp_path: Path, job_file: Path) -> None:
    job_file.write_text(FILE + 'trainer = "seqplan-huggingface"\n')
    plans = planned_by_the_command_line(tmp_path, "--trainer", "seqplan-huggingface")
    assert planned_by_the_sidecar(job_file) == plans
    assert '"tp":2' not in "".join(plans)


def test_a_sidecar_plans_around_slow_ranks_and_follows_its_times(job_file: Path) -> None:
    job_file.write_text(FILE + "slowdown = [1, 1.3, 1, 1]\n")
    assert '"slowdown":1.3' in "".join(planned_by_the_sidecar(job_file))
    rest = 'job = "lost"\nslowdown = [1, "lost", 1, 1, 1, 1, 1, 1]\n'
    larger = FILE.replace("gpus = 4", "gpus = 8").replace("llama-7b-a800", "llama3-8b-h100")
    job_file.write_text(larger + rest)
    with serving("--job", job_file, command="sidecar") as served:
        assert plan_of(served, "lost", 0).lost_ranks == (1,)
    job_file.write_text(FILE.replace("steps = 3", "steps = 200") + 'job = "refit"\nrefit = true\n')
    with serving("--job", job_file, command="sidecar") as served:
        for step in range(32):
            plan = plan_of(served, "refit", step)
            ms = [2 * rank_ms or None for rank_ms in list_usual_ms(plan).tolist()]
            ack = {"step": step, "ranks": list(range(4)), "digest": None, "measured_ms": ms}
            served.ok("POST", "/v1/jobs/refit/acks/many", ack)
        wait_until(lambda: len(served.ok("GET", "/v1/jobs/refit/revisions")["items"]) > 1)
    with serving("--job", job_file, command="sidecar") as served:  # it is the same job
        revisions = served.ok("GET", "/v1/jobs/refit/revisions")["items"]
    assert "2.000" in revisions[1]["reason"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile = ", "not TOML"),
        ("", "lacks profile"),
        (FILE + "gpu = 3", "unknown field: 'gpu'. Did you mean gpus?"),
        (FILE.replace("gpus = 4", 'gpus = "4"'), "gpus: must be an integer: '4'"),
        (FILE.replace("steps = 3", "steps = 0"), "steps: must be 1 or more: 0"),
        (FILE.replace("ahead = 3", "ahead = 2000"), "look_ahead must be 1024 or fewer, not 2000"),
        (FILE + "execution = 1", "execution: must be a string: 1"),
        (FILE + 'execution = "micro-steps"', "execution must be one of uniform, static, regroup"),
        (FILE + "micro_step_multiple = true", "micro_step_multiple: must be an integer: True"),
        (FILE + "micro_step_multiple = 0", "micro_step_multiple: must be 1 or more: 0"),
        (FILE + "micro_step_multiple = 2", "job.toml: micro_step_multiple 2: execution is regroup"),
        (FILE + 'trainer = "nemo"', "job.toml: trainer must be one of seqplan, "),
        (FILE + 'trainer = "transformers"', "job.toml: profile llama-7b-a800-80gb: is of ZeRO-1"),
        (FILE + 'store = ""', "job.toml: store is empty. State it, or leave it out"),
        (FILE + "refit = 1", "refit: must be true or false: 1"),
        (FILE + "slowdown = 1.3", 'must be a factor or "lost" for each rank, as [1.0, 1.3]: 1.3'),
        (FILE + 'slowdown = [1.3, "a"]', 'slowdown: must be a factor or "lost" for each'),
        (FILE.replace("lengths.npy", "none.npy"), "none.npy: no such file"),
        (FILE + 'store = "a/s.db"', "a does not exist. Create it"),
        (f"{LONG}slowdown = [1, 1.5]", "has 2 factors for 4 ranks. Give one for each rank"),
        (f"{LONG}slowdown = [1, 1, 1, 0.5]", "slowdown"),
        (f"{LONG}refit = true\nslowdown = [1, 1, 1, 2]", "refit finds the factors of slow ranks"),
        (f"{LONG}refit = true\nrobust = 0.1", "robust: refit finds the costs and slow ranks"),
        (f"{LONG}seed = {2**63}", f"seed must be {2**63 - 1} or fewer, not {2**63}"),
        (f"{LONG}robust = 0.9", "robust must be a share from 0 to 0.5: 0.9"),
        (f'{LONG}refit = true\nexecution = "lockstep"', "refit: in lockstep a rank's time is of"),
    ],
)
def test_bad_job_files(tmp_path: Path, job_file: Path, text: str, message: str) -> None:
    job_file.write_text(f"{text}\n")
    line = complaint(call("sidecar", "--job", job_file))
    assert message in line
    assert any(name in line for name in ("job.toml: ", "none.npy: ", "a/s.db"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml", "lengths.npy"]
