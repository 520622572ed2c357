"""verl's balancing: Karmarkar and Karp's differencing, over ranks and then over micro-batches.

Ranks get equally many sequences of about equal workload, 24,576·l + l² whatever the model and the
device; each rank then splits them into as many micro-batches as the rank with most tokens needs,
by the same method, and into one more on all of them while some micro-batch is too long.

Source: ``rearrange_micro_batches`` and ``karmarkar_karp`` of verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_best import static_without_stages
from seqplan.plans.scheme import Scheme

KEY, NAME = "verl", "verl-like, Karmarkar-Karp"

TOKEN_WORKLOAD = 24_576
"""Cost of a token next to l², in its units: made for a hidden size of 4,096."""


def karmarkar_karp(setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up the method on our fastest static scheme without stages."""
    best = static_without_stages(setting)
    if best is None:
        why = f"no static strategy without stages holds {setting.longest:,} tokens"
        return [Skipped(KEY, NAME, why)]
    ((scheme, ranks),) = best.counts
    return [
        ComparedSystem(
            KEY,
            NAME,
            f"{best}; workload {TOKEN_WORKLOAD:,}·l + l²",
            False,
            lambda batch: _execution(setting, batch, scheme, ranks),
            best,
        )
    ]


def _execution(setting: Setting, batch: Batch, scheme: Scheme, ranks: int) -> Execution:
    by_rank = verl_micro_batches(batch.lengths, ranks, setting.models[scheme])
    return setting.replicas(batch, scheme, by_rank)


def verl_micro_batches(
    lengths: Sequence[int], ranks: int, model: SchemeModel
) -> list[list[list[int]]]:
    """Split sequences into micro-batches: positions by rank and micro-batch."""
    workload = [TOKEN_WORKLOAD * length + length * length for length in lengths]
    of_ranks = differencing(workload, ranks, equal_size=True)
    padded = [model.scheme.pad_sequence(length) for length in lengths]
    tokens = [sum(padded[i] for i in of_rank) for of_rank in of_ranks]
    number = max(1, *(ceil(total / model.capacity) for total in tokens))
    while True:
        split = [
            [
                [of_rank[i] for i in part]
                for part in differencing([workload[i] for i in of_rank], number)
            ]
            for of_rank in of_ranks
        ]
        if all(
            sum(padded[i] for i in part) <= model.capacity for of_rank in split for part in of_rank
        ):
            return [[part for part in of_rank if part] for of_rank in split]
        number += 1


def differencing(
    numbers: Sequence[float], parts: int, *, equal_size: bool = False
) -> list[list[int]]:
    """Partition ``numbers`` (positions) into ``parts`` of about equal sums, largest sum first.

    The two partial solutions with the widest spread are merged, largest parts with smallest, until
    one is left. ``equal_size``: parts have equally many, or one less if they do not divide.
    """
    order = sorted(range(len(numbers)), key=lambda i: (numbers[i], i))
    step = parts if equal_size else 1
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for serial, first in enumerate(range(0, max(len(order), 1), step)):
        sets = [(numbers[i], [i]) for i in order[first : first + step]]
        sets += [(0.0, []) for _ in range(parts - len(sets))]
        sets.sort(key=lambda entry: (-entry[0], entry[1]))
        heap.append((sets[-1][0] - sets[0][0], serial, sets))
    heapify(heap)
    serial = len(heap)
    while len(heap) > 1:
        _, _, wide = heappop(heap)
        _, _, other = heappop(heap)
        merged = [
            (large + small, [*some, *others])
            for (large, some), (small, others) in zip(wide, reversed(other), strict=True)
        ]
        merged.sort(key=lambda entry: (-entry[0], entry[1]))
        serial += 1
        heappush(heap, (merged[-1][0] - merged[0][0], serial, merged))
    return [sorted(positions) for _, positions in heap[0][2]]
