"""The sidecar: one job from a file, with the plans that the command line makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from service_process import serving
from stocked_service import DATA

FILE = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
context = 4096
tokens = 8000
steps = 3
look_ahead = 3
port = 0
"""


def test_a_sidecar_plans_what_the_command_line_does(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.load(DATA)[:3000])
    (tmp_path / "job.toml").write_text(FILE)
    proposal, plans = tmp_path / "proposal.json", tmp_path / "plans.jsonl"
    lengths = ("--lengths", tmp_path / "lengths.npy")
    asked = ("--gpus", "4", "--max-len", "4096", "--tokens", "8000", "-o", proposal)
    succeeded(call("propose", "--profile", "llama-7b-a800-80gb", *lengths, *asked))
    succeeded(call("plan", "--proposal", proposal, *lengths, "--steps", "3", "-o", plans))
    for _ in range(2):  # begun again, it goes on with what it has
        with serving("--job", tmp_path / "job.toml", verb="sidecar") as served:
            served_plans = [
                served.ask("GET", f"/v1/jobs/job/plans/{step}?wait=30").body.decode()
                for step in range(3)
            ]
        assert served_plans == plans.read_text().splitlines()
    (tmp_path / "job.toml").write_text(FILE.replace("steps = 3", "steps = 4"))
    said = complaint(call("sidecar", "--job", tmp_path / "job.toml"))
    assert "has a job 'job' of other settings" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile = ", "not TOML"),
        ("", "lacks profile"),
        (FILE + "gpu = 3", "unknown field 'gpu'"),
        (FILE.replace("gpus = 4", 'gpus = "4"'), "gpus: wants an integer, not '4'"),
        (FILE.replace("steps = 3", "steps = 0"), "steps: wants 1 or more, not 0"),
        (FILE, "lengths.npy: no such file"),
    ],
)
def test_bad_job_files(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.toml").write_text(text)
    assert said in complaint(call("sidecar", "--job", tmp_path / "job.toml"))
