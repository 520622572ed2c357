"""Planned schedules through Megatron's pipeline stages, on ranks of CPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.core")

from megatron.core.datasets import data_schedule
from megatron_stages import REPLICAS, STAGES

from seqplan.integrations import megatron

NAMES = {str(getattr(key, "value", key)) for key in getattr(data_schedule, "scheduler_map", {})}


def run_ranks(scheduler: str, planned: str, path: Path) -> list[dict[str, Any]]:
    """Run a step and return the facts of each rank."""
    script = Path(__file__).with_name("megatron_stages.py")
    checkout = os.environ.get("SEQPLAN_MEGATRON", "")
    paths = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [sys.executable, "-W", "ignore", str(script), scheduler, planned, str(path)],
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        timeout=300,
    )
    facts: list[dict[str, Any]] = json.loads(path.read_text())
    assert len(facts) == STAGES * REPLICAS
    return facts


@pytest.mark.parametrize("scheduler", [megatron.STATIC, megatron.DYNAMIC])
def test_stages_train_on_planned_micro_batches(scheduler: str, tmp_path: Path) -> None:
    if scheduler not in NAMES:
        pytest.skip(f"no {scheduler} in its registry")
    theirs = run_ranks(scheduler, "original", tmp_path / "original.json")
    ours = run_ranks(scheduler, "planned", tmp_path / "planned.json")
    for mine, original in zip(ours, theirs, strict=True):
        assert mine["loss"] == pytest.approx(original["loss"], rel=1e-5)
        for name, values in original["gradients"].items():
            largest = max(map(abs, values))
            assert mine["gradients"][name] == pytest.approx(values, abs=1e-5 * largest)
    assert len({rank["count"] for rank in ours}) == 1
    tokens = [rank["tokens"] for rank in ours]
    assert tokens == tokens[:REPLICAS] * STAGES  # of the stages of each replica
    assert tokens != [rank["tokens"] for rank in theirs]
    assert ours[0]["figures"]["predicted_ms"] > 0
    assert not theirs[0]["figures"]
