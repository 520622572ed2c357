"""Samples of several loads on ranks of any speed: micro-steps, or packed rank by rank."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import numpy as np

from seqplan.planner.balance.micro_batch_counts import MicroBatches
from seqplan.planner.balance.slots import UNLIMITED, Items, assign_items, bound_ms
from seqplan.planner.placement.fleet import Floats, Ints

EXTRA, GOOD = 2, 2e-2
"""Numbers of micro-steps that are tried beyond the first that works, while the gap is larger."""


def assign_in_lockstep(
    items: Items, factors: Floats, multiple: int, least: int = 1
) -> MicroBatches:
    """Assign items to ranks in the best number of micro-steps.

    Returns items by rank and micro-step. ``factors`` (ranks,): how much slower each rank is;
    ``multiple``: of which the number of micro-steps is; ``least``: how many there are at least.
    ``ValueError`` if a rank on which items stay has fewer of them than micro-steps are needed.
    """
    ranks = len(factors)
    fewest = items.fewest_micro_steps(ranks)
    number = ceil(max(fewest, least) / multiple) * multiple
    most = inf if items.rank_of is None else np.bincount(items.rank_of, minlength=ranks).min()
    best, best_ms, tried = None, inf, 0
    while (best is None or tried <= EXTRA) and number <= most:
        assigned = assign_items(items, factors, number)
        if assigned is not None and assigned[1] < best_ms:
            best, best_ms = (assigned[0], number), assigned[1]
            if best_ms <= bound_ms(items, factors, fewest) * (1 + GOOD):
                break
        tried += best is not None
        number += multiple
    if best is None:
        raise ValueError(
            f"a rank has {most} samples for {number} micro-batches or more. Give it more samples"
        )
    owner, number = best
    return [
        [np.flatnonzero(owner == step * ranks + rank).tolist() for step in range(number)]
        for rank in range(ranks)
    ]


def assign_by_rank(items: Items, factors: Floats, multiple: int) -> MicroBatches:
    """Assign items to ranks that meet once a step, and pack each rank's micro-batches."""
    spread = spread_overhead(items)
    assigned = assign_items(
        replace(spread, capacity=np.full_like(items.capacity, UNLIMITED)), factors, 1
    )
    if assigned is None:
        raise AssertionError("slots without a limit hold every item")
    owner = assigned[0]
    return [_pack(items, np.flatnonzero(owner == rank)) for rank in range(len(factors))]


def spread_overhead(items: Items) -> Items:
    """Count the overhead of a micro-batch with its tokens: a full one pays it once."""
    share = items.tokens * (items.overhead_ms / items.capacity)
    return replace(items, work_ms=items.work_ms + share, overhead_ms=np.zeros_like(share[0]))


def _pack(items: Items, which: Ints) -> list[list[int]]:
    """Put items, the largest first, into the first micro-batch that holds them."""
    size = (items.tokens[which] / items.capacity).max(axis=1)
    micro_batches: list[list[int]] = []
    filled: list[Ints] = []
    for item in which[np.argsort(-size, kind="stable")].tolist():
        tokens = items.tokens[item]
        for place, held in enumerate(filled):
            if (held + tokens <= items.capacity).all():
                micro_batches[place].append(item)
                held += tokens
                break
        else:
            micro_batches.append([item])
            filled.append(tokens.copy())
    return micro_batches
