"""Samples of an H200: the fits of every recomputation mode are usable, memory is linear."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from seqplan import Profile, Scheme
from seqplan.api.cli import main
from seqplan.costs.fit.measured_profile import fit_all
from seqplan.costs.fit.pooling import merge_runs

MEASURED = Path(__file__).resolve().parents[3] / "docs" / "data" / "measured"
MODES = ("none", "elementwise", "mlp", "full")


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_predicts_what_it_was_not_fitted_to(mode: str) -> None:
    measured_on, samples = merge_runs([MEASURED / "llama3-8b-h200" / f"{mode}.samples.jsonl"])
    assert measured_on.recompute == mode
    fit = fit_all(measured_on, samples)
    latency = fit.latencies[Scheme()]
    assert latency.verdict == "usable"
    for errors in (latency.held_out, latency.packed):
        assert errors.median < 0.02
        assert errors.p90 < 0.04
    assert fit.memory.errors.largest < 0.001
    # Without that, a sample takes up to twice the time that the curve states.
    assert latency.launch_bound is not None
    bound = [sample for sample in samples if sample.launch_bound]
    assert {sample.tokens for sample in bound} <= {256, 416, 676, 1098, 1783}


def flatten(value: Any, place: str = "") -> dict[str, Any]:
    """Numbers and texts of a document by their place."""
    if not isinstance(value, dict | list):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in parts for k, v in flatten(part, f"{place}/{key}").items()}


def test_the_profile_is_made_of_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the last digits, which processors compute differently."""
    profile = MEASURED / "llama3-8b-h200.json"
    source = json.loads(profile.read_text("utf-8"))["source"]
    command = shlex.split(source.partition(": ")[2])
    assert command[:3] == ["seqplan", "profile", "merge"]
    again = tmp_path / "again.json"
    monkeypatch.chdir(MEASURED)
    assert main([*command[1:-1], str(again)]) == 0
    document = json.loads(again.read_text("utf-8"))
    document["source"] = source
    found, expected = flatten(document), flatten(json.loads(profile.read_text("utf-8")))
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        close = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        assert found[place] == close, place
    assert Profile.load(profile).mode_names == ", ".join(MODES)
