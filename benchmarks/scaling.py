"""Planning a step inside a program over the number of GPUs: CPU time and gap.

``docs/data/scaling.csv`` holds the results, of which the site draws a chart.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.settings import PROFILE, Data, markdown
from seqplan import Planner
from seqplan.planner.batches.sampler import Sampler

GPUS = (64, 256, 1_024, 4_096, 8_192)
TOKENS_PER_GPU, CONTEXT, STEPS, REPEATED = 3_125, 32_768, 5, 3
FILE = Path(__file__).parents[1] / "docs" / "data" / "scaling.csv"
HEAD = ("gpus", "sequences", "cpu_ms", "gap")


def run(data: Sequence[Data]) -> None:
    """Print medians over steps of the code lengths, and write them to the file."""
    (code,) = (source for source in data if source.name == "code")
    rows = [measure(code, gpus) for gpus in GPUS]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows([gpus, count, f"{ms:.1f}", f"{gap:.5f}"] for gpus, count, ms, gap in rows)
    print(f"### Planning a step over the GPUs: {PROFILE}, code, 32K\n")
    shown = [[f"{g:,}", f"{n:,}", f"{ms:.0f} ms", f"{gap:.2%}"] for g, n, ms, gap in rows]
    print(markdown(["GPUs", "sequences", "planning, CPU", "gap"], shown) + "\n")


def measure(source: Data, gpus: int) -> tuple[int, int, float, float]:
    """Return GPUs, and medians of sequences, CPU time (ms) and gap of a step.

    CPU time is the least of three plannings of the same step.
    """
    planner = Planner.from_profile(PROFILE, gpus, CONTEXT)
    batches = list(Sampler(source.lengths, TOKENS_PER_GPU * gpus, CONTEXT, 0).batches(STEPS))
    planner.plan(batches[0].lengths)
    times, gaps = [], []
    for batch in batches:
        repeated = []
        for _ in range(REPEATED):
            began = time.process_time()
            plan = planner.plan(batch.lengths)
            repeated.append((time.process_time() - began) * 1000)
        times.append(min(repeated))
        gaps.append(plan.gap)
    return gpus, int(median(len(b.lengths) for b in batches)), median(times), median(gaps)
