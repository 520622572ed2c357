"""Sweeps: the same comparison for each value, and why a value has none."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from settings_made import CODE

from seqplan.api.cli import main
from seqplan.api.cli.parts.compare_output import sweep_lines
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.comparison.results import Comparison
from seqplan.planner.comparison.sweep import Sweep, SweptPoint, SweptSystem, point_of, sweep
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workload import Workload

PROFILE = load_shipped("llama-7b-a800-80gb").restrict(measured=True)


def compared(gpus: int) -> Comparison:
    options = Options(("static", "megatron"))
    workload = Workload(gpus, 16384, 20_000)
    return compare(PROFILE, workload, CODE, 2, choose_sync(PROFILE, gpus), options=options)


def test_each_point_is_the_comparison_of_its_value() -> None:
    by_gpus = sweep("gpus", [4, 1], compared)
    assert [point.value for point in by_gpus.points] == [4, 1]
    alone = compared(4)
    assert by_gpus.points[0] == point_of(4, alone)
    ours, *others = by_gpus.points[0].systems
    assert (ours.key, ours.speedup) == ("ours", 1.0)
    assert ours.mean_ms == alone.ours.mean_ms
    for system, same in zip(others, alone.systems[1:], strict=True):
        assert system.speedup == pytest.approx(same.mean_ms / alone.ours.mean_ms)
    assert not by_gpus.points[1].systems
    assert by_gpus.notes()[0].startswith("1: not possible: 1 GPU is too few for llama-7b-a800-80gb")


def test_an_unknown_axis_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown axis 'steps'; there are gpus, max-len, tokens"):
        sweep("steps", [1], compared)


def swept(key: str, speedup: float) -> SweptSystem:
    return SweptSystem(key, key.title(), 100 * speedup, 90.0, 5000 / speedup, speedup)


def sweep_of_two() -> Sweep:
    """A missing system, a reason for all values, a value with none."""
    everywhere = ("Deep", "has no micro-steps")
    return Sweep(
        "tokens",
        (
            SweptPoint(1000, 1000, (swept("ours", 1.0), swept("other", 1.25)), (everywhere,)),
            SweptPoint(2000, 2000, (swept("ours", 1.0),), (("Other", "too long"), everywhere)),
            SweptPoint(3000, 0, (), (), "no data"),
        ),
    )


def test_a_table_with_all_values() -> None:
    lines = sweep_lines(sweep_of_two())
    assert lines[0].split() == ["tokens/s", "by", "tokens", "1,000", "2,000", "3,000"]
    assert lines[2].split() == ["Ours", "5,000", "5,000", "—"]
    assert lines[3].split() == ["Other", "4,000", "(1.25×)", "—", "—"]
    assert lines[4:] == [
        "3,000: not possible: no data",
        "throughout: left out: Deep: has no micro-steps",
        "2,000: left out: Other: too long",
    ]


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.npy"
    np.save(path, CODE)
    return path


def call(lengths: Path, *more: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    arguments = ["compare", "--profile", PROFILE.name, "--gpus", "2", str(lengths)]
    arguments += ["--max-len", "4096", "--tokens", "20000", "--steps", "1", "--systems", "static"]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([*arguments, *more])
        except SystemExit as left:
            code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_the_verb_sweeps(lengths: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    axes = "gpus=4,2 max-len=2048 tokens=8000,999999999"
    code, stdout, _ = call(lengths, "--sweep", axes, "--json", "-o", str(report))
    assert code == 0
    fields = json.loads(stdout)
    by_axis = {swept["axis"]: swept["points"] for swept in fields["sweeps"]}
    assert {axis: [p["value"] for p in points] for axis, points in by_axis.items()} == {
        "gpus": [4, 2],
        "max-len": [2048],
        "tokens": [8000, 999_999_999],
    }
    here = by_axis["gpus"][1]["systems"][0]
    assert here["mean_ms"] == fields["systems"][0]["mean_ms"]
    assert by_axis["gpus"][0]["systems"][0]["mean_ms"] < here["mean_ms"]
    assert "fewer than a step" in by_axis["tokens"][1]["not_possible"]
    assert "Speed-up of ours by number of GPUs" in report.read_text()
    assert "\ntokens/s by gpus " in call(lengths, "--sweep", "gpus=2")[1]


def test_optimizer_shards_and_flagged_coefficients_count(lengths: Path) -> None:
    four = ("--gpus", "4", "--json")
    plain = json.loads(call(lengths, *four)[1])
    more = ("--optimizer-shards", "2", "--schemes", "flagged")
    fields = json.loads(call(lengths, *four, *more)[1])
    assert "Optimizer states are sharded over 2 ranks." in fields["assumptions"]
    assert "Optimizer states are sharded over 2 ranks." not in plain["assumptions"]
    assert fields["systems"][0]["mean_ms"] >= plain["systems"][0]["mean_ms"]
    assert call(lengths, "--optimizer-shards", "5")[0] == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps=1", "must be AXIS=V,V,… of the axes gpus, max-len, tokens: 'steps=1'"),
        ("gpus", "must be AXIS=V,V,… of the axes gpus, max-len, tokens: 'gpus'"),
        ("gpus=8,x", "must be an integer of 1 or more: 'x'"),
        ("gpus=8 gpus=16", "has gpus twice"),
    ],
)
def test_a_bad_sweep_is_one_line(lengths: Path, text: str, expected: str) -> None:
    code, out, err = call(lengths, "--sweep", text)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1
