"""Micro-steps by enumeration: every way to group sequences and to choose degrees."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf

from oracles.exhaustive import partitions

from seqplan.costs.latency import Latency
from seqplan.planner.placement.fleet import PipelineClass


def least_micro_steps_ms(
    classes: Sequence[PipelineClass],
    lengths: Sequence[int],
    gpus: int,
    stages: int = 1,
    *,
    one_each: bool = False,
    multiple: int = 1,
) -> float:
    """Σ micro-steps of the best plan, and (stages − 1) times the longest.

    ``one_each``: a group runs its sequences one by one instead of packed. ``multiple``: of which
    the number of micro-steps is.
    """
    best = inf
    for groups in partitions(range(len(lengths))):
        options = []
        for group in groups:
            members = [lengths[i] for i in group]
            calls, held = (len(members), max) if one_each else (1, sum)
            options.append(
                [
                    (kind.gpus, sum(n * (kind.a * n + kind.b) for n in members) + calls * kind.c)
                    for kind in classes
                    if held(-(-n // kind.unit) * kind.unit for n in members) <= kind.capacity
                ]
            )
        for micro_steps in partitions(range(len(groups))):
            if len(micro_steps) % multiple:
                continue
            lasting = []
            for micro_step in micro_steps:
                times = [
                    max(time for _, time in choice)
                    for choice in product(*(options[i] for i in micro_step))
                    if sum(size for size, _ in choice) <= gpus
                ]
                lasting.append(min(times, default=inf))
            best = min(best, sum(lasting) + (stages - 1) * max(lasting))
    return best


def least_busy_micro_steps_ms(
    lengths: Sequence[int], ranks: int, capacity: int, costs: Mapping[int, Latency]
) -> float:
    """Σ micro-steps of the best plan whose groups take all ranks, by subsets."""
    every = 1 << len(lengths)
    times = [
        {
            degree: cost.micro_batch_ms(members)
            for degree, cost in costs.items()
            if degree <= ranks and sum(members) <= capacity * degree
        }
        for subset in range(every)
        if (members := [n for i, n in enumerate(lengths) if subset >> i & 1]) or True
    ]
    one = [inf] * every
    for subset in range(1, every):
        places = [i for i in range(len(lengths)) if subset >> i & 1]
        for groups in partitions(places):
            reached = {0: 0.0}  # ranks in groups so far: the slowest of these
            for group in groups:
                options = times[sum(1 << i for i in group)]
                further: dict[int, float] = {}
                for used, slowest in reached.items():
                    for degree, time in options.items():
                        if used + degree <= ranks:
                            time = max(time, slowest)
                            further[used + degree] = min(time, further.get(used + degree, inf))
                reached = further
            one[subset] = min(one[subset], reached.get(ranks, inf))
    best = [0.0, *[inf] * (every - 1)]
    for subset in range(1, every):
        lowest, part = subset & -subset, subset
        while part:
            if part & lowest:
                best[subset] = min(best[subset], one[part] + best[subset ^ part])
            part = (part - 1) & subset
    return best[-1]
