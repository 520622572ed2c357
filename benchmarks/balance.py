"""Balancing over equal ranks: planning time and proven gap."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Cost, balance

SHAPES = ((4096, 128), (512, 16))
CONTEXTS = (4096, 8192, 32_768)
DRAWS = 9
PROFILE, SCHEME = "llama-7b-a800-80gb", "tp2"


def run(data: Sequence[Data]) -> None:
    """Print gap and time of a call by data set, context and trainer."""
    cost = Cost.from_profile(PROFILE, SCHEME)
    rows = [
        _row(source, cost, context, sequences, ranks, lockstep=lockstep)
        for source in data
        for context in CONTEXTS
        for sequences, ranks in SHAPES
        for lockstep in (True, False)
    ]
    print(f"### Balancing, {DRAWS} draws, costs of {SCHEME} in {PROFILE}\n")
    head = ["lengths, context", "sequences × ranks", "trainer", "micro-batches a rank"]
    head += ["gap, median", "p90", "CPU, median"]
    print(markdown(head, rows) + "\n")


def _row(
    source: Data, cost: Cost, context: int, sequences: int, ranks: int, *, lockstep: bool
) -> list[str]:
    gaps, times, counts = [], [], []
    for draw in range(DRAWS):
        drawn = np.random.default_rng(draw).choice(source.lengths, sequences)
        lengths = np.minimum(drawn, context)
        began = time.process_time()
        balanced = balance(
            lengths, ranks, context, cost, execution="lockstep" if lockstep else "uniform"
        )
        times.append((time.process_time() - began) * 1000)
        gaps.append(balanced.gap * 100)
        counts.append(np.mean([len(of_rank) for of_rank in balanced.micro_batches]))
    return [
        f"{source.name}, {context // 1024}K",
        f"{sequences:,} × {ranks}",
        "lockstep" if lockstep else "free",
        f"{np.mean(counts):.1f}",
        f"{np.median(gaps):.2f} %",
        f"{np.percentile(gaps, 90):.2f} %",
        f"{np.median(times):.0f} ms",
    ]
