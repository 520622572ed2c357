"""A planner is ready when it is made: its first step takes no longer than it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seqplan import Cluster, find_profile, make_proposal

SCRIPT = """
import sys
from pathlib import Path
from seqplan import Batch, StepPlanner
from seqplan.planner import ProposalDocument
planner = StepPlanner(ProposalDocument.load(Path(sys.argv[1])))
before = set(sys.modules)
planner.plan(Batch(0, tuple(range(40)), (700, 2900) * 20))
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize(("profile", "gpus"), [("llama-7b-a800-80gb", 2), ("gpt-7b-a100-40gb", 8)])
def test_the_first_step_imports_nothing(tmp_path: Path, profile: str, gpus: int) -> None:
    path, lengths = tmp_path / "proposal.json", np.array([700, 2900] * 50)
    cluster = Cluster(gpus, 4096, 8000)
    path.write_text(make_proposal(find_profile(profile), cluster, lengths).to_json())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout.split()) == ("", [])
