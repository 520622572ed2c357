"""Packing one pipeline's sequences into micro-batches of given sizes, with little padding."""

from __future__ import annotations

from collections.abc import Sequence

SLACKS = (0.0, 1e-3, 5e-3, 2e-2, 1.0)
"""Room beyond the tokens, as a share of them, with which sizes are chosen until all fit."""


def pack_into_sizes(tokens: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Pack sequences of ``tokens`` into micro-batches that ``sizes`` (ascending) nearly fill.

    Returns places in ``tokens``; None if a sequence exceeds the largest size. As few micro-batches
    as hold them; of these, one after another gets the smaller size that takes most of the room that
    is left. Then sequences, the longest first, take the fullest micro-batch that holds them.
    """
    if not tokens:
        return []
    total, most = sum(tokens), sizes[-1]
    if max(tokens) > most:
        return None
    number = -(-total // most)
    order = sorted(range(len(tokens)), key=lambda j: (-tokens[j], j))
    while True:
        for slack in SLACKS:
            chosen = _choose_sizes(total + int(slack * total), number, sizes)
            packed = _best_fit(tokens, order, chosen)
            if packed is not None:
                return packed
        number += 1


def _choose_sizes(total: int, number: int, sizes: Sequence[int]) -> list[int]:
    """Choose the sizes of so many micro-batches that just hold ``total`` tokens, if they can."""
    chosen = [sizes[-1]] * number
    room = sum(chosen) - total
    for place in range(number):
        size = next((size for size in sizes if sizes[-1] - size <= room), sizes[-1])
        if size == sizes[-1]:
            break
        room -= sizes[-1] - size
        chosen[place] = size
    return chosen


def _best_fit(
    tokens: Sequence[int], order: Sequence[int], sizes: Sequence[int]
) -> list[list[int]] | None:
    room = list(sizes)
    packed: list[list[int]] = [[] for _ in sizes]
    for j in order:
        fitting = [(left, place) for place, left in enumerate(room) if left >= tokens[j]]
        if not fitting:
            return None
        _, place = min(fitting)
        packed[place].append(j)
        room[place] -= tokens[j]
    return [micro for micro in packed if micro]
