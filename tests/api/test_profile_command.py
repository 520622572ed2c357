"""``seqplan profile`` on this machine, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqplan.plans.scheme import Scheme
from seqplan.profiler.profile import Profile

TINY = ["--hidden", "32", "--layers", "4", "--heads", "4", "--kv-heads", "2"]
TINY += ["--ffn", "48", "--vocab", "50"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def profiled(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    module = ["-m", "seqplan.api.cli", "profile"]
    command = [sys.executable, *launcher, *module, *TINY, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False
    )


def test_one_rank_measures_fits_and_goes_on_from_its_samples(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    asked = ("--lengths", "8..256", "--points", "4", "-o", str(output), "--schemes", "u1,u2,tp2")
    done = profiled(*asked)
    assert done.returncode == 0, done.stderr
    assert "u2 needs 2 ranks, there are 1: left out" in done.stderr
    assert "tp2: tp and pp above 1 are not measured yet: left out" in done.stderr
    assert "bytes a token" in done.stdout
    profile = Profile.load(output)
    assert [entry.scheme for entry in profile.schemes] == [Scheme()]
    assert profile.schemes[0].origin == "measured"
    # Memory is counted, not timed: linear but for alignment.
    fit = profile.schemes[0].fit
    assert fit is not None
    assert fit["in_sample"]["samples"] == 4
    samples = output.with_suffix(".samples.jsonl")
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:-2]))
    assert profiled(*asked).returncode == 0
    again = samples.read_text().splitlines(keepends=True)
    assert len(again) == len(lines)
    assert again[:-2] == lines[:-2]  # what was there is kept, not measured anew


def test_two_ranks_measure_ulysses_and_ring(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    page = tmp_path / "fit.html"
    asked = ("--lengths", "64..512", "--points", "4", "-o", str(output), "--plot", str(page))
    done = profiled(*asked, "--schemes", "u1,u2,r2", launcher=launcher)
    assert done.returncode == 0, done.stderr
    profile = Profile.load(output)
    assert [str(entry.scheme) for entry in profile.schemes] == ["tp1", "r2", "u2"]
    # What a rank keeps is counted, and linear over lengths, packings and schemes.
    document = json.loads(output.read_text())
    memory = document["residuals"].rpartition("memory ")[2]
    assert float(memory.partition("%")[0]) < 3.0
    html = page.read_text()
    for heading in ("Scheme tp1", "Scheme u2", "Scheme r2"):
        assert heading in html
    assert html.count('class="hollow"') >= 2 * 3 * 2 * 7  # 7 single lengths, two figures, widths
    assert "http" not in html.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--lengths", "9"), "--lengths '9': wants FROM..TO"),
        (("--lengths", "90..9"), "lengths must rise"),
        (("--schemes", "u3"), "tp·ulysses = 3 does not divide the 4 attention heads: left out"),
        (("--schemes", "x3"), "'x3' is not understood"),
        (("--device", "cuda"), "no CUDA device is there"),
        (("--model", "nonesuch"), "neither a known model"),
        (("--merge", "none.jsonl"), "none.jsonl: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_no_file(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    output = tmp_path / "p.json"
    done = profiled(*arguments, "-o", str(output))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
