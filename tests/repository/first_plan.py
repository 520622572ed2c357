"""Print the digest of a small plan, and whether the extension made it.

It imports nothing but ``seqplan`` and numpy, so that it runs with any installed package.
"""

from pathlib import Path

import numpy as np

import seqplan
from seqplan.planner.placement.fill import kernel_state


def plan_first() -> str:
    """Propose and plan one step; return its digest."""
    lengths = np.load(Path(__file__).parents[2] / "examples" / "data" / "code.npy")
    workload = seqplan.Workload(gpus=16, max_len=16384, tokens=100_000)
    profile = seqplan.find_profile("llama-7b-a800-80gb")
    proposal = seqplan.make_proposal(profile, workload, lengths, seed=0)
    first = [min(int(length), 16384) for length in lengths[:40]]
    return seqplan.digest(seqplan.StepPlanner(proposal).plan(seqplan.Batch.from_lengths(first)))


if __name__ == "__main__":
    print(plan_first())
    print(kernel_state())
