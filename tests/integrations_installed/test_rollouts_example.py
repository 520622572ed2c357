"""``examples/rollouts.py``: the gradients of a rollout do not depend on its distribution."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "rollouts.py"


def test_ways_to_distribute_a_rollout_have_the_same_gradients() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", EXAMPLE],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("CPU-s a step") == 4
    found = re.search(r"gradient norms of the ways differ by at most (\S+)", done.stdout)
    assert float(found[1]) < 1e-5
