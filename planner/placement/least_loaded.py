"""Sequences assigned one by one to the micro-batch that ends first with each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush, heapreplace

Loaded = tuple[float, list[int]]
"""A micro-batch: its load (ms) and the keys of its sequences."""


def assign_to_least_loaded(
    items: Iterable[tuple[int, Sequence[float], int]],
    numbers: Sequence[int],
    capacities: Sequence[int],
) -> list[list[Loaded]] | None:
    """Give each sequence to the micro-batch with room that ends first with it.

    ``items``: key, work (ms) in each class and padded tokens of each sequence, in their order.
    ``numbers`` and ``capacities``: micro-batches of each class, and the tokens that one holds.
    Returns the micro-batches of each class; None if a sequence finds no room.
    """
    heaps = [[(0.0, place) for place in range(number)] for number in numbers]
    room = [[capacity] * number for number, capacity in zip(numbers, capacities, strict=True)]
    assigned: list[list[list[int]]] = [[[] for _ in range(number)] for number in numbers]
    for key, works, padded in items:
        ends: list[tuple[float, int]] = []
        full: list[list[tuple[float, int]]] = []
        for k, heap in enumerate(heaps):
            full.append([])
            while heap and room[k][heap[0][1]] < padded:
                full[k].append(heappop(heap))
            if heap:
                ends.append((heap[0][0] + works[k], k))
        if not ends:
            return None
        end, k = min(ends)
        place = heaps[k][0][1]
        heapreplace(heaps[k], (end, place))
        room[k][place] -= padded
        assigned[k][place].append(key)
        for heap, skipped in zip(heaps, full, strict=True):
            for micro_batch in skipped:
                heappush(heap, micro_batch)
    loads = [{place: load for load, place in heap} for heap in heaps]
    return [
        [(of_class[place], keys) for place, keys in enumerate(parts)]
        for of_class, parts in zip(loads, assigned, strict=True)
    ]
