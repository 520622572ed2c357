"""LoongForge's rules: full windows, then samples moved between ranks, costliest first.

A window takes the longest sample that it has room for until there is none; windows reach ranks in
a random order. In each micro-step, if the slowest rank takes 20 % more than the mean and no sample
alone as long as it, samples are assigned anew: the costliest first, each to the rank that has least
of this step so far and room for it, 1.2 times the mean tokens; then the costliest sample of the
slowest rank goes to the fastest, or changes places with its cheapest, up to 20 times while they
differ by 5 %. A sample's cost is a·l² + b·l, here ours; images the same way, by patches².

Source: ``balanced_greedy_knapsack`` in loongforge/data/multimodal/base/packer.py and
``solve_sample_dp_reorder_plan`` in loongforge/data/dp_balance/rebalance/balance.py of
github.com/baidu-baige/LoongForge at c6275661, August 2026.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch

ROOM = 1.2
"""Tokens of a rank over the mean, at most (``--dp-balance-max-len-ratio-vlm``)."""

TRIGGER = 0.2
"""Excess of the slowest rank that moves samples (``--dp-balance-trigger-threshold-vlm``)."""

EXCHANGES, TOLERANCE = 20, 0.05
"""Moves and swaps at most; difference of the slowest and the fastest rank that is left."""


def assign_rebalanced_windows(
    batch: Batch, ranks: int, model: SchemeModel
) -> tuple[Batch, list[list[list[int]]]]:
    """Fill windows, assign them to ranks at random, and rebalance each micro-step.

    Windows leave room for the rebalancing, if the longest sequence does. A micro-step that memory
    would not hold stays as it was.
    """
    padded = [model.scheme.pad_sequence(length) for length in batch.lengths]
    costs = model.latency.work_ms(np.array(batch.lengths)).tolist()
    windows = fill_largest_first(padded, max(*padded, int(model.max_sequence / ROOM)))
    order = np.random.default_rng(batch.step).permutation(len(windows))
    by_rank: list[list[list[int]]] = [[] for _ in range(ranks)]
    spent = [0.0] * ranks
    for first in range(0, len(order), ranks):
        step = [windows[k] for k in order[first : first + ranks]]
        step += [[] for _ in range(ranks - len(step))]
        moved = rebalance(step, costs, padded, spent=spent)
        if max(sum(padded[i] for i in part) for part in moved) <= model.max_sequence:
            step = moved
        for rank, part in enumerate(step):
            spent[rank] += sum(costs[i] for i in part)
            if part:
                by_rank[rank].append(part)
    return batch, by_rank


def fill_largest_first(tokens: Sequence[int], window: int) -> list[list[int]]:
    """Fill windows one after another, each with the longest that it has room for."""
    left = sorted(range(len(tokens)), key=lambda i: tokens[i])
    windows = []
    while left:
        held, part = 0, list[int]()
        while place := bisect_right(left, window - held, key=lambda i: tokens[i]):
            part.append(left.pop(place - 1))
            held += tokens[part[-1]]
        windows.append(part)
    return windows


def rebalance(
    by_rank: Sequence[Sequence[int]],
    costs: Sequence[float],
    tokens: Sequence[int],
    *,
    room: float = ROOM,
    spent: Sequence[float] | None = None,
) -> list[list[int]]:
    """Assign the samples of a micro-step anew; as they are if the rule leaves them.

    ``by_rank``: positions in ``costs`` and ``tokens``; ``room``: tokens of a rank over the mean,
    infinite for images; ``spent``: costs of earlier micro-steps of the step, by rank.
    """
    ranks = len(by_rank)
    loads = list(spent or [0.0] * ranks)
    before = [load + sum(costs[i] for i in part) for load, part in zip(loads, by_rank, strict=True)]
    samples = [i for part in by_rank for i in part]
    mean = sum(before) / ranks
    if max(before) / mean - 1 < TRIGGER or max(costs[i] for i in samples) > mean:
        return [list(part) for part in by_rank]
    limit = inf if room == inf else sum(tokens[i] for i in samples) / ranks * room
    parts: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    by_load = [(load, rank) for rank, load in enumerate(loads)]
    heapify(by_load)
    for i in sorted(samples, key=lambda i: -costs[i]):
        passed = [heappop(by_load)]
        while held[passed[-1][1]] + tokens[i] > limit and by_load:
            passed.append(heappop(by_load))
        if held[passed[-1][1]] + tokens[i] > limit:
            passed.append(passed.pop(0))
        rank = passed.pop()[1]
        parts[rank].append(i)
        held[rank] += tokens[i]
        loads[rank] += costs[i]
        for entry in (*passed, (loads[rank], rank)):
            heappush(by_load, entry)
    for _ in range(EXCHANGES):
        if not _exchange(parts, loads, held, costs, tokens, limit):
            break
    return parts


def _exchange(
    parts: list[list[int]],
    loads: list[float],
    held: list[int],
    costs: Sequence[float],
    tokens: Sequence[int],
    limit: float,
) -> bool:
    """Move or swap between the slowest and the fastest rank, in place; whether that helps."""
    slow, fast = loads.index(max(loads)), loads.index(min(loads))
    spread = loads[slow] - loads[fast]
    if spread < TOLERANCE * max(loads[fast], 1e-6) or not parts[slow] or not parts[fast]:
        return False
    given = max(parts[slow], key=lambda i: costs[i])
    taken = min(parts[fast], key=lambda i: costs[i])
    options = []
    for back in ([], [taken]):
        more = tokens[given] - sum(tokens[i] for i in back)
        if held[fast] + more > limit or (back and held[slow] - more > limit):
            continue
        changed = list(loads)
        shift = costs[given] - sum(costs[i] for i in back)
        changed[slow] -= shift
        changed[fast] += shift
        options.append((max(changed) - min(changed), more, back, changed))
    if not options:
        return False
    left, more, back, changed = min(options, key=lambda option: option[0])
    if left >= spread:
        return False
    parts[slow].remove(given)
    parts[fast].append(given)
    for i in back:
        parts[fast].remove(i)
        parts[slow].append(i)
    loads[:] = changed
    held[slow] -= more
    held[fast] += more
    return True
