"""``examples/closed_loop.py``: a real job of gloo ranks whose plans follow a rank that slows."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "closed_loop.py"


def test_job_is_refitted_and_planned_around_its_slow_rank() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ": refit: measured times are" in done.stdout
    assert "slow ranks and their factors: " in done.stdout
    assert "2 (" in done.stdout.rpartition("slow ranks and their factors: ")[2]
