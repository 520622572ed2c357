"""Small and nearly full batches compared with Megatron's rule, at several costs of a ring step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Cost
from seqplan.integrations.degree_costs import by_degree
from seqplan.planner.lockstep.rank_groups import plan_groups

RING_MS = (0.4, 5.0, 25.0)
"""What a micro-batch costs more for each further rank of its group (ms)."""

BATCHES, CAPACITY, LONGEST = 480, 8_192, 32_768

Rule = Callable[[list[int], int], Sequence[Sequence[Sequence[int]]]]
Timed = Callable[[Sequence[Sequence[Sequence[int]]], Sequence[int], dict[int, Cost]], float]


def run(data: Sequence[Data], rule: Rule, timed: Timed, costs: dict[int, Cost]) -> None:
    """Print a table of ``BATCHES`` batches for each cost of a ring step."""
    rows = []
    for ring_ms in RING_MS:
        ratios, gaps, cpu = [], [], []
        for ranks, lengths in _batches(data):
            costs_here = by_degree(costs, ranks)
            costs_here = {
                d: Cost(k.a, k.b, costs_here[1].c + ring_ms * (d - 1))
                for d, k in costs_here.items()
            }
            theirs = rule(lengths, ranks)
            began = time.process_time()
            micro_steps = plan_groups(lengths, ranks, CAPACITY, costs_here, known=_known(theirs))
            cpu.append(1000 * (time.process_time() - began))
            ratios.append(timed(theirs, lengths, costs_here) / micro_steps.predicted_ms)
            gaps.append(micro_steps.gap)
        slower = sum(ratio < 1 - 1e-9 for ratio in ratios)
        rows.append(
            [
                f"{ring_ms:g} ms",
                str(slower),
                f"{min(ratios):.3f}",
                f"{np.median(ratios):.3f}",
                f"{np.mean(ratios):.3f}",
                f"{100 * np.median(gaps):.1f} %",
                f"{np.median(cpu):,.0f} ms",
            ]
        )
    print(f"### {BATCHES} small and nearly full batches, Megatron's rule over ours\n")
    head = ["a further rank costs", "slower than its rule", "least", "median", "mean"]
    print(markdown([*head, "gap, median", "our CPU, median"], rows) + "\n")


def _known(groups: Sequence[Sequence[Sequence[int]]]) -> list[list[tuple[int, list[int]]]]:
    """Return groups as (degree, positions): neighbors with the same samples are one."""
    known: list[list[tuple[int, list[int]]]] = []
    for of_ranks in groups:
        known.append([])
        for members in of_ranks:
            if known[-1] and known[-1][-1][1] == list(members):
                known[-1][-1] = (known[-1][-1][0] + 1, list(members))
            else:
                known[-1].append((1, list(members)))
    return known


def _batches(data: Sequence[Data]) -> Iterator[tuple[int, list[int]]]:
    """Draw ranks and lengths: up to two sequences a rank, or tokens near what ranks hold."""
    rng = np.random.default_rng(0)
    for number in range(BATCHES):
        ranks = int(rng.choice([4, 8, 16, 32]))
        drawn = rng.choice(data[number % len(data)].lengths, 600)
        lengths = np.minimum(drawn, min(LONGEST, CAPACITY * ranks))
        if number % 4 < 2:
            lengths = lengths[: int(rng.integers(1, 2 * ranks + 1))]
        else:
            tokens = int(rng.integers(1, 4)) * ranks * CAPACITY * rng.uniform(0.93, 1.02)
            lengths = lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), tokens)))]
            if rng.random() < 0.5:
                lengths = np.append(lengths, 128)
        yield ranks, lengths.tolist()
