"""How many micro-batches each rank has, with a sequence in each of them, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

MicroBatches = list[list[list[int]]]
"""Positions of sequences, by rank and micro-batch."""


def pad_counts(parts: MicroBatches, multiple: int, *, lockstep: bool) -> MicroBatches:
    """Add empty micro-batches: to a multiple on each rank, with ``lockstep`` the same on all."""
    most = max(len(of_rank) for of_rank in parts)
    padded = []
    for of_rank in parts:
        wanted = most if lockstep else max(1, len(of_rank))
        wanted = -(-wanted // multiple) * multiple
        padded.append([*of_rank, *([] for _ in range(wanted - len(of_rank)))])
    return padded


def order_largest_first(
    parts: MicroBatches, tokens: Callable[[Sequence[int]], int], lockstep: bool
) -> MicroBatches:
    """Order micro-batches by ``tokens``; with ``lockstep`` micro-steps by their largest."""
    if not lockstep:
        return [sorted(of_rank, key=tokens, reverse=True) for of_rank in parts]
    steps = range(max(map(len, parts)))
    largest = [max(tokens(of_rank[k]) for of_rank in parts if of_rank) for k in steps]
    order = sorted(steps, key=lambda k: -largest[k])
    return [[of_rank[k] for k in order] if of_rank else [] for of_rank in parts]


def drop_empty_steps(parts: MicroBatches, multiple: int) -> MicroBatches:
    """Leave out micro-steps that are empty on all ranks, as many as ``multiple`` allows."""
    empty = [not any(of_step) for of_step in zip(*parts, strict=True)]
    spare = sum(empty) // multiple * multiple
    left_out = set([step for step, is_empty in enumerate(empty) if is_empty][:spare])
    return [[m for step, m in enumerate(of_rank) if step not in left_out] for of_rank in parts]


def fill_empty(
    parts: MicroBatches, sizes: Sequence[float], *, across_ranks: bool, lockstep: bool
) -> None:
    """Give each empty micro-batch the smallest sequence of one that has several.

    ``sizes``: tokens of each sequence, or its work in all phases.

    With ``lockstep`` one of its micro-step, so that none becomes longer, else of its rank, so
    that no rank has more to do; then of all, if ``across_ranks`` and if sequences suffice for all
    micro-batches. If they do not, no rank and no micro-step becomes longer: only ranks without any
    sequence take one of another rank.
    """
    enough = len(sizes) >= sum(len(of_rank) for of_rank in parts)
    if lockstep and across_ranks:
        for of_step in zip(*parts, strict=True):
            if any(of_step):
                _move_smallest(of_step, of_step, sizes)
    if enough and not (lockstep and across_ranks):
        for of_rank in parts:
            _move_smallest(of_rank, of_rank, sizes)
    if across_ranks:
        every = [micro for of_rank in parts for micro in of_rank]
        bare = every if enough else [of_rank[0] for of_rank in parts if not any(of_rank)]
        _move_smallest(bare, [] if lockstep and not enough else every, sizes)


def _move_smallest(
    takers: Iterable[list[int]], givers: Iterable[list[int]], sizes: Sequence[float]
) -> None:
    """Give each empty one of ``takers`` the smallest sequence that ``givers`` with several have."""
    empty = [micro for micro in takers if not micro]
    if not empty:
        return
    several = [sorted(micro, key=lambda i: (-sizes[i], -i)) for micro in givers if len(micro) > 1]
    owners = [micro for micro in givers if len(micro) > 1]
    shortest = [
        (sizes[positions[-1]], positions[-1], place) for place, positions in enumerate(several)
    ]
    heapify(shortest)
    for micro in empty:
        if not shortest:
            return
        _, position, place = heappop(shortest)
        several[place].pop()
        owners[place].remove(position)
        micro.append(position)
        if len(several[place]) > 1:
            heappush(shortest, (sizes[several[place][-1]], several[place][-1], place))
