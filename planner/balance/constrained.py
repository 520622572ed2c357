"""Balancing of sequences that stay together, or are equally many on each rank."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil

import numpy as np

from seqplan.planner.balance.assignment import assign_by_rank, assign_in_lockstep
from seqplan.planner.balance.micro_batch_counts import MicroBatches, fill_empty, pad_counts
from seqplan.planner.balance.slots import Items
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.planner.placement.least_loaded import assign_to_least_loaded


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
    factors: Floats,
    *,
    lockstep: bool,
    multiple: int,
) -> MicroBatches:
    """Assign bundles, by place, to the micro-batches of ranks.

    ``factors`` (ranks,): how much slower each rank is, the least first.
    """
    items = Items(
        np.array([[bundle.work_ms] for bundle in bundles], dtype=np.float64),
        np.array([[bundle.tokens] for bundle in bundles], dtype=np.int64),
        np.array([micro_batch.capacity], dtype=np.int64),
        np.array([micro_batch.c], dtype=np.float64),
    )
    plan = assign_in_lockstep if lockstep else assign_by_rank
    return plan(items, factors, multiple)


def unbundle(
    parts: MicroBatches, bundles: Sequence[Bundle], *, lockstep: bool, multiple: int
) -> MicroBatches:
    """List positions in place of bundles; no micro-batch is empty if bundles suffice."""
    parts = pad_counts(parts, multiple, lockstep=lockstep)
    tokens = [bundle.tokens for bundle in bundles]
    fill_empty(parts, tokens, across_ranks=True, lockstep=lockstep)
    return list_positions(parts, bundles)


def list_positions(parts: MicroBatches, bundles: Sequence[Bundle]) -> MicroBatches:
    """List the positions of sequences in place of their bundles."""
    return [
        [[i for place in micro for i in bundles[place].positions] for micro in of_rank]
        for of_rank in parts
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


def equalize_samples(
    parts: MicroBatches, bundles: Sequence[Bundle], micro_batch: PipelineClass
) -> MicroBatches | None:
    """Even the numbers of bundles on equal ranks in lockstep, by little more time.

    ``parts``: bundles by rank and micro-step, by place. Ranks exchange their micro-batches of a
    micro-step, which takes no time, and then ranks with more give the lightest ones to those with
    fewer. None if no micro-batch has room.
    """
    ranks, share = len(parts), len(bundles) // len(parts)
    steps = [sorted(of_step, key=len, reverse=True) for of_step in zip(*parts, strict=True)]
    even: MicroBatches = [[] for _ in parts]
    counts: Ints = np.zeros(ranks, dtype=np.int64)
    for of_step in sorted(steps, key=lambda of_step: len(of_step[-1]) - len(of_step[0])):
        order = np.argsort(counts, kind="stable").tolist()
        for micro, rank in zip(of_step, order, strict=True):
            even[rank].append(sorted(micro))
            counts[rank] += len(micro)
    work_of = np.array([bundle.work_ms for bundle in bundles])
    tokens_of = np.array([bundle.tokens for bundle in bundles])
    work_ms = np.array([[work_of[micro].sum() for micro in of_rank] for of_rank in even])
    tokens = np.array([[tokens_of[micro].sum() for micro in of_rank] for of_rank in even])
    while counts.max() > share:
        giver, takers = int(counts.argmax()), np.flatnonzero(counts < share)
        several = np.flatnonzero([len(micro) > 1 for micro in even[giver]])
        given = [even[giver][step][-1] for step in several.tolist()]  # most work comes first
        at = np.ix_(takers, several)
        after_ms = work_ms[at] + work_of[given]
        later_ms = np.maximum(0.0, after_ms - work_ms[:, several].max(axis=0))
        fits = tokens[at] + tokens_of[given] <= micro_batch.capacity
        if not fits.any():
            return None
        place = np.lexsort((after_ms[fits], later_ms[fits]))[0]
        taker, column = np.argwhere(fits)[place].tolist()
        taker, step, moved = int(takers[taker]), int(several[column]), given[column]
        even[giver][step].pop()
        insort(even[taker][step], moved)
        for rank, sign in ((giver, -1), (taker, 1)):
            counts[rank] += sign
            work_ms[rank, step] += sign * work_of[moved]
            tokens[rank, step] += sign * tokens_of[moved]
    return even


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
    items = ((place, [of.work_ms], of.tokens) for place, of in enumerate(bundles))
    packed = assign_to_least_loaded(items, [number], [micro_batch.capacity])
    return None if packed is None else [[bundles[i] for i in part] for _, part in packed[0]]


def _work_ms(micro: Sequence[Bundle]) -> float:
    return float(sum(bundle.work_ms for bundle in micro))
