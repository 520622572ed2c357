"""Ranks that run their micro-batches each for itself and meet at the end of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange import exchange_sequences, level_pipelines
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Bin, Fleet, PipelineClass
from seqplan.plans.scheme import Scheme, Strategy

GOOD = 1e-2
"""Optimality gap above which a linear program seeks a closer bound."""

RankBins = tuple[tuple[Bin, ...], ...]
"""The micro-batches of each rank."""


def plan_free(
    classes: Sequence[PipelineClass], batch: Batch, multiple: int = 1
) -> tuple[list[RankBins], float]:
    """Minimize the slowest rank's Σ of micro-batches: some placements, and a lower bound (ms).

    ``classes``: the ranks of each speed, the fastest first. The slowest rank is the one that a step
    waits for; the others are evened below it. ``multiple``: of which the number of micro-batches of
    each rank is; the bound counts as many if sequences suffice for all of them, the placements may
    have fewer. Their work alone is then balanced as well, and, on ranks of equal speed, sequences
    longest first with at least ``multiple`` on each rank.
    """
    placement, bound_ms = _minimize(classes, batch)
    ranks, fastest = sum(k.count for k in classes), classes[0]
    if multiple == 1 or len(batch.lengths) < multiple * ranks:
        return [placement], bound_ms
    overhead_ms = multiple * fastest.c
    by_work, work_bound_ms = _minimize([replace(k, c=0.0) for k in classes], batch)
    work_ms = fastest.work_ms(batch.distinct)
    shortest_ms = np.repeat(work_ms[::-1], batch.multiplicity[::-1])[: multiple - 1]
    longest_rank_ms = float(work_ms[0] + shortest_ms.sum()) * (1 - 1e-9)
    bound_ms = max(bound_ms, max(work_bound_ms, longest_rank_ms) + overhead_ms)
    placements = [placement, by_work]
    if len(classes) == 1:
        placements.append(_assign_longest_first(fastest, batch, ranks, multiple))
    return placements, bound_ms


def _minimize(classes: Sequence[PipelineClass], batch: Batch) -> tuple[RankBins, float]:
    """Minimize the slowest rank, with as many micro-batches as is best; and bound it (ms)."""
    ranks = sum(k.count for k in classes)
    fleet = Fleet(Strategy.from_counts({Scheme(): ranks}), tuple(classes))
    filler = Filler(fleet, batch)
    bound = cheap_bound_ms(fleet.classes, batch)
    filling = dispatch(filler, bound)
    if filling is None:
        raise AssertionError("every sequence fits a micro-batch")
    if filling.objective_ms > bound * (1 + GOOD):
        bound = max(bound, certify(fleet, batch, filling.objective_ms))
    if len(classes) > 1:
        filling = exchange_sequences(fleet, batch, filling, bound)
    filling = level_pipelines(fleet, batch, filling)
    return tuple(of_rank for placement in filling.bins for of_rank in placement), min(
        bound, filling.objective_ms
    )


def _assign_longest_first(
    micro_batch: PipelineClass, batch: Batch, ranks: int, least: int
) -> RankBins:
    """Give each sequence, longest first, to the rank with least work that may have it.

    As soon as the sequences that are left are only enough for ``least`` on each rank, ranks that
    have as many get no more. A rank puts each into its micro-batch with least room that holds it.
    """
    work_ms = micro_batch.work_ms(batch.distinct).tolist()
    lengths, counts = batch.distinct.tolist(), batch.multiplicity.tolist()
    loads = [(0.0, rank) for rank in range(ranks)]
    packed: list[list[tuple[int, dict[int, int]]]] = [[] for _ in range(ranks)]
    numbers = [0] * ranks
    left, missing = sum(counts), least * ranks
    for i, (length, n) in enumerate(zip(lengths, counts, strict=True)):
        padded = micro_batch.pad(length)
        for _ in range(n):
            load, rank = heappop(loads)
            while left <= missing and numbers[rank] >= least:
                load, rank = heappop(loads)
            missing -= numbers[rank] < least
            numbers[rank] += 1
            left -= 1
            heappush(loads, (load + work_ms[i], rank))
            _put(packed[rank], micro_batch.capacity, i, padded)
    return tuple(tuple(list(content.items()) for _, content in of_rank) for of_rank in packed)


def _put(packed: list[tuple[int, dict[int, int]]], capacity: int, i: int, padded: int) -> None:
    """Put a sequence into the fullest micro-batch that holds it, or a new one."""
    holding = [(room, place) for place, (room, _) in enumerate(packed) if room >= padded]
    if not holding:
        packed.append((capacity - padded, {i: 1}))
        return
    room, place = min(holding)
    content = packed[place][1]
    content[i] = content.get(i, 0) + 1
    packed[place] = (room - padded, content)
