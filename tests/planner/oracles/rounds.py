"""Rounds by enumeration: every way to group sequences, to choose degrees and to form rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import inf

from oracles.exhaustive import partitions

from seqplan.planner.placement.fleet import PipelineClass


def least_rounds_ms(
    classes: Sequence[PipelineClass],
    lengths: Sequence[int],
    gpus: int,
    stages: int = 1,
    *,
    one_each: bool = False,
) -> float:
    """Σ rounds of the best plan, and (stages − 1) times the longest: groups, schemes, rounds.

    ``one_each``: a group runs its sequences one by one instead of packed.
    """
    best = inf
    for groups in partitions(range(len(lengths))):
        options = []
        for group in groups:
            own = [lengths[i] for i in group]
            calls, held = (len(own), max) if one_each else (1, sum)
            options.append(
                [
                    (kind.gpus, sum(n * (kind.a * n + kind.b) for n in own) + calls * kind.c)
                    for kind in classes
                    if held(-(-n // kind.unit) * kind.unit for n in own) <= kind.capacity
                ]
            )
        for rounds in partitions(range(len(groups))):
            lasting = []
            for round_ in rounds:
                times = [
                    max(time for _, time in choice)
                    for choice in product(*(options[i] for i in round_))
                    if sum(size for size, _ in choice) <= gpus
                ]
                lasting.append(min(times, default=inf))
            best = min(best, sum(lasting) + (stages - 1) * max(lasting))
    return best
