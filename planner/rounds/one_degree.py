"""Rounds of one micro-batch a rank: each lasts as long as its slowest rank (FSDP, ZeRO-3).

The least Σ over rounds of the slowest micro-batch, every micro-batch within its tokens.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import ceil

import numpy as np

from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.rounds.filled_rounds import FilledRounds, Sequences
from seqplan.planner.rounds.filler import RoundsFiller
from seqplan.planner.rounds.search import common_target, improved

EXTRA_ROUNDS = 2
"""Rounds tried beyond the fewest, in multiples of what the host wants."""

LOOSE, FEW = 1e-2, 600
"""Where the gap is above this and there are so few sequences, they are also dealt one by one."""


def fewest_rounds(micro_batch: PipelineClass, sequences: Sequences, ranks: int) -> int:
    """Count the rounds that tokens need, and that sequences above half of a micro-batch need."""
    padded = micro_batch.padded(sequences.lengths)
    by_tokens = ceil(int(padded @ sequences.counts) / (micro_batch.capacity * ranks))
    large = int(sequences.counts[2 * padded > micro_batch.capacity].sum())
    return max(1, by_tokens, ceil(large / ranks))


def rounds_bound_ms(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, rounds: int
) -> float:
    """Prove a lower bound (ms) on every plan of exactly ``rounds`` rounds.

    Rounds ordered by their time, longest first. The j-th lasts at least as long alone as the
    ((j − 1)·ranks + 1)-th of the sequences of which no two share a micro-batch. The first j hold at
    most j·ranks·capacity tokens, whose work is at most that of the longest sequences with as many;
    the work that is left is spread over the ranks of the other rounds. The bound is the largest of
    these sums over j; j = 0 is the area.
    """
    lengths, counts = sequences.lengths, sequences.counts
    work = micro_batch.work_ms(lengths)
    total = float(work @ counts)
    alone_ms = _round_floors_ms(micro_batch, sequences, ranks, rounds)
    # Tokens without padding: with it work per token would not rise with the length.
    tokens_up_to = np.concatenate([[0], np.cumsum(lengths * counts)]).astype(np.float64)
    work_up_to = np.concatenate([[0.0], np.cumsum(work * counts)])
    best = total / ranks + rounds * micro_batch.c
    floors = 0.0
    for j in range(1, rounds + 1):
        floors += alone_ms[j - 1]
        held = float(np.interp(j * ranks * micro_batch.capacity, tokens_up_to, work_up_to))
        rest = (total - held) / ranks + (rounds - j) * micro_batch.c if j < rounds else 0.0
        best = max(best, floors + max(rest, sum(alone_ms[j:])))
    return best * (1 - 1e-9)


def _round_floors_ms(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, rounds: int
) -> list[float]:
    """Bound each round's time alone, longest round first (ms)."""
    lengths, padded = sequences.lengths, micro_batch.padded(sequences.lengths)
    large = np.where(2 * padded > micro_batch.capacity, sequences.counts, 0)
    up_to = np.cumsum(large)
    floors = []
    for j in range(rounds):
        place = int(np.searchsorted(up_to, j * ranks, side="right")) if j else 0
        longest = int(lengths[place]) if place < len(lengths) else 0
        work = longest * (micro_batch.a * longest + micro_batch.b)
        floors.append(work + micro_batch.c)
    return floors


def plan_rounds(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, multiple: int = 1
) -> tuple[FilledRounds, float]:
    """Find rounds for all sequences, and a lower bound over all plans (ms).

    For numbers of rounds from the fewest on (multiples of ``multiple``): the least common target
    that works, each round lasting at least as long as the longest sequence that is left; then
    targets of single rounds are changed while the sum falls. ``ValueError`` where a sequence
    exceeds a micro-batch.
    """
    filler = RoundsFiller([micro_batch], sequences, ranks)
    fewest = fewest_rounds(micro_batch, sequences, ranks)
    first = ceil(fewest / multiple) * multiple
    best: FilledRounds | None = None
    bounds: list[float] = []
    number = first
    while len(bounds) <= EXTRA_ROUNDS or best is None:
        bound = rounds_bound_ms(micro_batch, sequences, ranks, number)
        bounds.append(bound)
        if best is None or bound < best.total_ms:
            start = common_target(filler, number, bound)
            if start is not None and (best is None or start.total_ms < best.total_ms):
                best = improved(filler, start, bound)
            if best is None or best.total_ms > bound * (1 + LOOSE):
                even = _even_rounds(micro_batch, sequences, ranks, number)
                if even is not None and (best is None or even.total_ms < best.total_ms):
                    best = even
        number += multiple
    # Every plan with more rounds than were tried costs at least its work and their overhead.
    bounds.append(rounds_bound_ms(micro_batch, sequences, ranks, number))
    return best, min(*bounds, best.total_ms)


def _even_rounds(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, rounds: int
) -> FilledRounds | None:
    """Give each sequence, longest first, to the least loaded micro-batch of all with room.

    Micro-batches are then dealt to rounds by their time, the slowest together. None where one finds
    no room, and where sequences are many.
    """
    if int(sequences.counts.sum()) > FEW:
        return None
    loads = [(0.0, place) for place in range(rounds * ranks)]
    room = [micro_batch.capacity] * len(loads)
    dealt: list[dict[int, int]] = [{} for _ in loads]
    pairs = zip(sequences.lengths.tolist(), sequences.counts.tolist(), strict=True)
    for i, (length, n) in enumerate(pairs):
        padded = micro_batch.pad(length)
        work = length * (micro_batch.a * length + micro_batch.b)
        for _ in range(n):
            full = []
            while loads and room[loads[0][1]] < padded:
                full.append(heappop(loads))
            if not loads:
                return None
            load, place = loads[0]
            heapreplace(loads, (load + work, place))
            room[place] -= padded
            dealt[place][i] = dealt[place].get(i, 0) + 1
            for skipped in full:
                heappush(loads, skipped)
    ordered = [(load, dealt[place]) for load, place in sorted(loads, reverse=True) if dealt[place]]
    together = [ordered[first : first + ranks] for first in range(0, len(ordered), ranks)]
    return FilledRounds.of_bins(
        [[list(micro.items()) for _, micro in of_round] for of_round in together],
        [of_round[0][0] + micro_batch.c for of_round in together],
    )
