"""Balancing of sequences that stay together, or are equally many on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, inf

import numpy as np

from seqplan.planner.balance.assignment import assign_by_rank, assign_in_lockstep
from seqplan.planner.balance.micro_batch_counts import MicroBatches
from seqplan.planner.balance.slots import Items
from seqplan.planner.lockstep.busy_ranks import assign_longest_first
from seqplan.planner.placement.fleet import Floats, PipelineClass

EXTRA = 2
"""Numbers of micro-batches a rank that are tried beyond the fewest."""


@dataclass(frozen=True)
class Bundle:
    """Sequences that share a micro-batch: positions, padded tokens, work (ms)."""

    positions: tuple[int, ...]
    tokens: int
    work_ms: float


def bundles_of(
    micro_batch: PipelineClass, lengths: Sequence[int], keys: Sequence[object] | None
) -> list[Bundle]:
    """Bundle sequences of the same key, or leave each alone; most work first.

    ``ValueError`` for a bundle beyond a micro-batch.
    """
    members: dict[object, list[int]] = {}
    for position in range(len(lengths)):
        key = position if keys is None else keys[position]
        members.setdefault(key, []).append(position)
    bundles = []
    for key, positions in members.items():
        tokens = sum(micro_batch.pad(lengths[i]) for i in positions)
        if tokens > micro_batch.capacity:
            raise ValueError(
                f"keep_together {key!r}: its {len(positions)} sequences have {tokens} tokens, a "
                f"micro-batch holds {micro_batch.capacity}"
                ". Raise the capacity or use smaller groups"
            )
        work = sum(lengths[i] * (micro_batch.a * lengths[i] + micro_batch.b) for i in positions)
        bundles.append(Bundle(tuple(positions), tokens, work))
    return sorted(bundles, key=lambda bundle: (-bundle.work_ms, bundle.positions))


def plan_bundles(
    micro_batch: PipelineClass,
    bundles: Sequence[Bundle],
    ranks: int,
    *,
    lockstep: bool,
    multiple: int,
) -> MicroBatches:
    """Give each bundle to the least loaded micro-batch with room, most work first.

    For several numbers of micro-batches a rank, from the fewest that tokens need. Micro-batches are
    then assigned to ranks: with ``lockstep`` those of similar time form a micro-step, else each
    goes to the rank with least time so far.
    """
    tokens = sum(bundle.tokens for bundle in bundles)
    fewest = max(1, ceil(tokens / (micro_batch.capacity * ranks)))
    number = ceil(fewest / multiple) * multiple
    best: MicroBatches | None = None
    best_ms, tried = inf, 0
    while best is None or tried <= EXTRA:
        packed = _pack_bundles(micro_batch, bundles, ranks * number)
        if packed is not None:
            assigned = _assign_micro_batches(packed, ranks, number, lockstep=lockstep)
            time = _time_ms(micro_batch, assigned, lockstep=lockstep)
            if time < best_ms:
                best_ms = time
                best = [
                    [[i for b in micro for i in b.positions] for micro in of_rank]
                    for of_rank in assigned
                ]
        tried += best is not None
        number += multiple
    return best


def plan_uneven_bundles(
    micro_batch: PipelineClass,
    bundles: Sequence[Bundle],
    factors: Floats,
    *,
    lockstep: bool,
    multiple: int,
) -> MicroBatches:
    """Assign bundles to ranks of different speeds; ``factors`` (ranks,), the least first."""
    items = Items(
        np.array([[bundle.work_ms] for bundle in bundles]),
        np.array([[bundle.tokens] for bundle in bundles], dtype=np.int64),
        np.array([micro_batch.capacity], dtype=np.int64),
        np.array([micro_batch.c]),
    )
    plan = assign_in_lockstep if lockstep else assign_by_rank
    return [
        [[i for place in micro for i in bundles[place].positions] for micro in of_rank]
        for of_rank in plan(items, factors, multiple)
    ]


def plan_equal_samples(
    micro_batch: PipelineClass,
    bundles: Sequence[Bundle],
    ranks: int,
    *,
    lockstep: bool,
    multiple: int,
) -> MicroBatches:
    """Give each rank equally many bundles: each to the least loaded rank that lacks some.

    Each rank then packs its sequences, all into the same number of micro-batches with ``lockstep``.
    ``ValueError`` if they cannot be equally many.
    """
    if len(bundles) % ranks or len({len(bundle.positions) for bundle in bundles}) > 1:
        described = f"{sum(len(bundle.positions) for bundle in bundles)} sequences"
        if any(len(bundle.positions) > 1 for bundle in bundles):
            described += f" in {len(bundles)} groups"
        raise ValueError(
            f"equal_samples: {described} cannot be assigned equally to {ranks} ranks"
            ". Add or remove sequences"
        )
    share = len(bundles) // ranks
    loads = [(0.0, rank) for rank in range(ranks)]
    heapify(loads)
    of_rank: list[list[Bundle]] = [[] for _ in range(ranks)]
    for bundle in bundles:
        load, rank = heappop(loads)
        of_rank[rank].append(bundle)
        if len(of_rank[rank]) < share:
            heappush(loads, (load + bundle.work_ms, rank))
    packed = [_fewest_packed(micro_batch, part, 1, multiple) for part in of_rank]
    while lockstep and len({len(micro_batches) for micro_batches in packed}) > 1:
        most = max(len(micro_batches) for micro_batches in packed)
        packed = [_fewest_packed(micro_batch, part, most, multiple) for part in of_rank]
    for micro_batches in packed:
        micro_batches.sort(key=_work_ms, reverse=True)
    return [
        [[i for b in micro for i in b.positions] for micro in micro_batches]
        for micro_batches in packed
    ]


def _fewest_packed(
    micro_batch: PipelineClass, bundles: Sequence[Bundle], least: int, multiple: int
) -> list[list[Bundle]]:
    """Pack into the fewest micro-batches from ``least`` on, a multiple of ``multiple``."""
    number = ceil(least / multiple) * multiple
    while (packed := _pack_bundles(micro_batch, bundles, number)) is None:
        number += multiple
    return packed


def _pack_bundles(
    micro_batch: PipelineClass, bundles: Sequence[Bundle], number: int
) -> list[list[Bundle]] | None:
    """Put each bundle into the least loaded of ``number`` micro-batches with room; or None."""
    items = ((place, of.work_ms, of.tokens) for place, of in enumerate(bundles))
    packed = assign_longest_first(items, number, micro_batch.capacity)
    return None if packed is None else [[bundles[i] for i in part] for _, part in packed]


def _assign_micro_batches(
    packed: list[list[Bundle]], ranks: int, number: int, *, lockstep: bool
) -> list[list[list[Bundle]]]:
    """Deal micro-batches to ranks, ``number`` to each."""
    ordered = sorted(packed, key=_work_ms, reverse=True)
    assigned: list[list[list[Bundle]]] = [[] for _ in range(ranks)]
    if lockstep:
        for place, micro in enumerate(ordered):
            assigned[place % ranks].append(micro)
        return assigned
    loads = [(0.0, rank) for rank in range(ranks)]
    heapify(loads)
    for micro in ordered:
        load, rank = heappop(loads)
        assigned[rank].append(micro)
        if len(assigned[rank]) < number:
            heappush(loads, (load + _work_ms(micro), rank))
    return assigned


def _work_ms(micro: Sequence[Bundle]) -> float:
    return float(sum(bundle.work_ms for bundle in micro))


def _time_ms(
    micro_batch: PipelineClass, assigned: Sequence[Sequence[Sequence[Bundle]]], *, lockstep: bool
) -> float:
    times = [[_work_ms(micro) + micro_batch.c for micro in of_rank] for of_rank in assigned]
    if lockstep:
        return float(sum(max(of_micro_step) for of_micro_step in zip(*times, strict=True)))
    return float(max(sum(of_rank) for of_rank in times))
