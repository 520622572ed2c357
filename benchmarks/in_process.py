"""Steps planned inside a program, from a profile alone: CPU time and gap, with proof or not.

CPU time is the least of three plannings of the same step: neighbors of a shared core double it at
times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from benchmarks.settings import PROFILE, Data, markdown
from seqplan import Planner
from seqplan.planner.batches.sampler import Sampler

SETTINGS = ((64, 200_000, 20), (1024, 3_200_000, 6), (8192, 25_600_000, 3))
"""GPUs, tokens of a step, steps."""

CONTEXT = 32_768
REPEATED = 3


def run(data: Sequence[Data]) -> None:
    """Print the median of each number of GPUs; the layout is left to the planner."""
    rows = [_row(source, *setting) for source in data for setting in SETTINGS]
    print(f"### Planned in process, {PROFILE}, 32K, no proposal\n")
    head = ["lengths, GPUs", "sequences", "with proof: CPU", "gap", "without: CPU", "gap"]
    head += ["time without over with proof"]
    print(markdown(head, rows) + "\n")


def _row(source: Data, gpus: int, tokens: int, steps: int) -> list[str]:
    batches = list(Sampler(source.lengths, tokens, CONTEXT, 0).batches(steps))
    row = [f"{source.name}, {gpus:,}", f"{median(len(b.lengths) for b in batches):,.0f}"]
    totals = []
    for prove in (True, False):
        planner = Planner.from_profile(PROFILE, gpus, CONTEXT, prove=prove)
        planner.plan(batches[0].lengths)
        times, gaps, total = [], [], 0.0
        for batch in batches:
            repeated = []
            for _ in range(REPEATED):
                began = time.process_time()
                plan = planner.plan(batch.lengths)
                repeated.append((time.process_time() - began) * 1000)
            times.append(min(repeated))
            gaps.append(plan.gap)
            total += plan.predicted_ms + (plan.sync_ms or 0.0)
        row += [f"{median(times):.0f} ms", f"{median(gaps):.2%}"]
        totals.append(total)
    return [*row, f"{totals[1] / totals[0]:.4f}"]
