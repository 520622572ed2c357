"""Systems and trainers of installed packages, found by their entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LENGTHS = Path(__file__).parents[3] / "examples" / "data" / "code.npy"

MODULE = """
from dataclasses import replace

from seqplan.planner.proposal.backends import BACKENDS
from seqplan.planner.systems.setting import Skipped
from seqplan.planner.systems.static_best import static_best

BACKEND = replace(BACKENDS["megatron"], name="rings-only", axes=frozenset({"ring"}))


def halves(setting):
    (static, *_) = static_best(setting, [])
    return [replace(static, key="halves", name="Halves"), Skipped("thirds", "Thirds", "no thirds")]


def wrong(setting):
    return ["nothing"]
"""

ENTRIES = """\
[seqplan.systems]
halves = added_rules:halves
wrong = added_rules:wrong
broken = added_rules:absent
[seqplan.trainers]
rings-only = added_rules:BACKEND
no-backend = added_rules:halves
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    (tmp_path / "added_rules.py").write_text(MODULE)
    facts = tmp_path / "added_rules-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: added-rules\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    return tmp_path


def compare(package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seqplan", "compare", str(LENGTHS), *options]
    command += ["--profile", "llama-7b-a800-80gb", "--gpus", "4", "--max-len", "8192"]
    command += ["--tokens", "20000", "--steps", "1", "--json"]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_added_system_is_compared(package: Path) -> None:
    done = compare(package, "--systems", "static,halves")
    fields = json.loads(done.stdout)
    assert [system["key"] for system in fields["systems"]][-1] == "halves"
    assert {"name": "Thirds", "why": "no thirds"} in fields["left_out"]


def test_added_trainer_restricts_the_schemes(package: Path) -> None:
    done = compare(package, "--systems", "static", "--trainer", "rings-only")
    steps = json.loads(done.stdout)["systems"][0]["iterations"]
    degrees = {(s["tp"], s["pp"], s["ulysses"]) for step in steps for s in step["schemes"]}
    assert degrees == {(1, 1, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--systems", "quarters"), "unknown system 'quarters'; there are one-layout, static"),
        (("--systems", "broken"), "seqplan.systems 'broken': added_rules:absent cannot be loaded"),
        (("--systems", "wrong"), "system 'wrong': its entry point must return ComparedSystem"),
        (("--trainer", "nemo"), "argument --trainer: invalid choice: 'nemo'"),
        (("--trainer", "no-backend"), "its entry point must be a TrainingBackend"),
    ],
)
def test_bad_extension_is_one_line(package: Path, options: tuple[str, ...], message: str) -> None:
    done = compare(package, *options)
    lines = [line for line in done.stderr.splitlines() if "seqplan" in line]
    assert done.returncode == 2
    assert message in lines[-1]
    assert "Traceback" not in done.stderr
