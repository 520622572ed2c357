"""Choosing where steps are planned: on the command line and in a job file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from command_line import call, complaint
from planned_files import PlannedFiles

from seqplan.api.cli.framework.job_file import read_job_file

JOB = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
context = 4096
steps = 3
"""


def test_a_job_file_names_its_executor(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    assert read_job_file(path).executor == "processes"
    path.write_text(JOB + 'executor = "ray"\n')
    assert read_job_file(path).executor == "ray"
    path.write_text(JOB + 'executor = "slurm"\n')
    with pytest.raises(ValueError, match="executor: must be processes or ray: 'slurm'"):
        read_job_file(path)


def test_an_unknown_executor_is_a_usage_error() -> None:
    for workers in ("slurm:2", "ray", "ray:0", "ray:2:3"):
        line = complaint(call("plan", "--proposal", "p", "l", "--workers", workers))
        assert "argument --workers: must be " in line


def test_without_ray_one_line_has_the_fix(
    dense: PlannedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "ray" else find(name)
    )
    for command in (
        ("plan", "--proposal", dense.proposal, dense.lengths),
        ("serve", "--store", tmp_path / "store.db"),
    ):
        message = complaint(call(*command, "--workers", "ray:2"))
        assert message == "ray: needs the ray package. pip install 'seqplan[ray]'"
