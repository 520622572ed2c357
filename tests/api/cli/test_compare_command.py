"""``seqplan compare``: its table, report, sweeps and rejected options."""

import json
from pathlib import Path

from command_line import Outcome, call, succeeded
from comparisons import ODD, pipelined

from seqplan.api.cli.parts.compare_output import comparison_fields, comparison_lines


def compare(lengths: Path, *more: str | int | Path) -> Outcome:
    """Compare on 4 GPUs; later options replace earlier ones."""
    return call(
        *("compare", "--profile", "llama-7b-a800-80gb", "--gpus", 4, lengths),
        *("--max-len", 16384, "--tokens", 20000, "--steps", 2, *more),
    )


def compare_static(lengths: Path, *more: str | int | Path) -> Outcome:
    """Compare one short step of static strategies on 2 GPUs."""
    step = ("--gpus", 2, "--max-len", 4096, "--steps", 1, "--systems", "static")
    return compare(lengths, "--schemes", "measured", *step, *more)


PROPAGATION = ("--gpus", "8", "--schemes", "measured", "--sync", "0")
"""Where different replicas pay, so that there is one heterogeneous strategy, too."""


def test_the_table(lengths: Path) -> None:
    stdout = succeeded(compare(lengths, *PROPAGATION, "--systems", "static,megatron,deepspeed"))
    assert stdout.startswith(
        "simulated on profile llama-7b-a800-80gb: 8 × NVIDIA A800-80GB, 2 steps"
    )
    assert "\nseqplan  " in stdout
    assert "\nMegatron-like, varlen  " in stdout
    assert "\nleft out: DeepSpeed-like: " in stdout
    assert "step by step, whole iterations: Megatron-like, varlen 1.00×" in stdout


def test_json_and_the_report(lengths: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    both = ("--systems", "static,megatron", "--json")
    fields = json.loads(succeeded(compare(lengths, *both, "-o", report)))
    assert fields["simulated_on"] == "llama-7b-a800-80gb"
    ours = fields["systems"][0]
    assert ours["key"] == "ours"
    assert ours["speedups"] == [1.0, 1.0]
    assert [step["step"] for step in ours["iterations"]] == [0, 1]
    assert "spans" not in ours["iterations"][0]
    page = report.read_text()
    assert page.startswith("<!")
    assert len(page) < 2_000_000
    assert succeeded(compare(lengths, *PROPAGATION, *both)).count('"ours"') == 2


def test_the_verb_sweeps(lengths: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    axes = "gpus=4,2 max-len=2048 tokens=8000,999999999"
    swept = compare_static(lengths, "--sweep", axes, "--json", "-o", report)
    fields = json.loads(succeeded(swept))
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
    assert "\ntokens/s by gpus " in compare_static(lengths, "--sweep", "gpus=2").out


def test_optimizer_shards_and_flagged_coefficients_count(lengths: Path) -> None:
    four = ("--gpus", "4", "--json")
    plain = json.loads(succeeded(compare_static(lengths, *four)))
    more = ("--optimizer-shards", "2", "--schemes", "flagged")
    fields = json.loads(succeeded(compare_static(lengths, *four, *more)))
    assert "Optimizer states are sharded over 2 ranks." in fields["assumptions"]
    assert "Optimizer states are sharded over 2 ranks." not in plain["assumptions"]
    assert fields["systems"][0]["mean_ms"] >= plain["systems"][0]["mean_ms"]
    assert compare_static(lengths, "--optimizer-shards", 5).code == 2


def test_nearest_rival_comes_first_and_states_its_interval() -> None:
    comparison = pipelined()
    lines = comparison_lines(comparison)
    published, static = (
        system.mean_ms / comparison.ours.mean_ms for system in comparison.systems[1:]
    )
    nearest = f"speed-up over the nearest rival, {ODD}, balanced: {static:.2f}× (no interval: 3"
    of_published = f"speed-up over the best published system, {ODD}: {published:.2f}×"
    assert of_published in lines
    ranges = "ours is faster: by mean iterations; in parentheses the least and most of 3 steps"
    assert lines[lines.index(ranges) - 3].startswith("seqplan  ")
    assert lines[lines.index(of_published) - 1].startswith(nearest)
    fields = comparison_fields(comparison)["nearest_rival"]
    assert fields["speedup"] == round(static, 4)
    assert (fields["interval"], fields["steps"]) == (None, 3)
