"""Choosing where steps are planned: on the command line and in a job file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqplan.api.cli.framework.job_file import read_job_file
from seqplan.planner.workers.executor import Workers

JOB = """
profile = "llama-7b-a800-80gb"
lengths = "lengths.npy"
gpus = 4
max_len = 4096
steps = 3
"""


def test_a_job_file_names_its_workers(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for line, expected in (
        ("", Workers(1)),
        ("workers = 4", Workers(4)),
        ('workers = "3"', Workers(3)),
        ('workers = "ray:4"', Workers(4, ray=True)),
    ):
        path.write_text(JOB + line + "\n")
        assert read_job_file(path).workers == expected
    for value in ('"slurm:2"', "0", '"ray:0"', "true", "[2]"):
        path.write_text(JOB + f"workers = {value}\n")
        with pytest.raises(ValueError, match="workers must be W or ray:W, W of 1 or more: "):
            read_job_file(path)
    path.write_text(JOB + 'executor = "ray"\n')
    with pytest.raises(ValueError, match="unknown field: 'executor'"):
        read_job_file(path)


@pytest.mark.parametrize(("stated", "used"), [(None, "1"), ("3", "3")])
def test_commands_multiply_in_one_thread(stated: str | None, used: str) -> None:
    """On busy cores NumPy's threads wait for each other; a stated number is kept."""
    code = (
        "import os, seqplan.api.cli as cli; cli.main(['profile', 'list']); "
        "print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    variables = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    variables |= {} if stated is None else {"OPENBLAS_NUM_THREADS": stated}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines()[-1] == used
