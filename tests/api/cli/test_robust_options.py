"""``--robust`` of plan and compare, and what compare prints of a gain that survives."""

import json
from pathlib import Path

import pytest
from command_line import call, complaint, succeeded

CODE = "examples/data/code.npy"
SMALL = ("--profile", "llama-7b-a800-80gb", "--gpus", 4, "--max-len", 8192)
SMALL += ("--tokens", 20_000, "--steps", 2)


def test_compare_prints_how_much_of_a_gain_survives() -> None:
    arguments = ("compare", CODE, *SMALL, "--schemes", "measured", "--systems", "static")
    for options, share in ((("--robust", 0.075), "7.5 %"), ((), "10 %")):
        text = " ".join(succeeded(call(*arguments, *options)).split())
        assert f"if a, b or c are off by {share}: of a gain of" in text
        assert f"{share})" in text
    fields = json.loads(succeeded(call(*arguments, "--json")))
    survival = fields["survival"]
    assert survival[0]["costs"] == "the profile's costs"
    assert [entry["costs"] for entry in survival[1:]] == [
        f"{name} {sign}10 %" for sign in "+-" for name in "abc"
    ]
    (static,) = [system for system in fields["systems"] if system["key"] == "static"]
    ours = fields["systems"][0]
    assert survival[0]["gain"] == pytest.approx(static["mean_ms"] / ours["mean_ms"] - 1, abs=1e-3)
    # A common factor of all coefficients would change nothing; those of one do, a little.
    gains = [entry["gain"] for entry in survival]
    assert max(gains) - min(gains) < 0.05
    assert len(set(gains)) > 3


def test_plans_are_robust_by_an_option(tmp_path: Path) -> None:
    arguments = ("plan", CODE, *SMALL)
    output = tmp_path / "plans.jsonl"
    succeeded(call(*arguments, "--robust", "0.1", "-o", output))
    checked = succeeded(call("check", "plans", output, "--profile", "llama-7b-a800-80gb"))
    assert checked.startswith("2 plans, no broken rules")
    for options, message in (
        (("--robust", "0.9"), "--robust must be a share from 0 to 0.5: 0.9"),
        (("--robust", "0.1", "--exact"), "--exact solves at the profile's costs. Leave --robust"),
        (("--robust", "0.1", "--slowdown", "3=1.2"), "--robust plans for equal ranks."),
    ):
        assert message in complaint(call(*arguments, *options))
