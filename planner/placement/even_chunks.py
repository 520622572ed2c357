"""Consecutive chunks of the sorted sequences, as even in tokens as they can be.

FlexSP (arXiv 2412.01523, Eq. 23–24) splits a step's sequences into micro-batches this way before it
forms groups: similar lengths stay together, and no micro-batch needs much more memory than another.
"""

from __future__ import annotations

from collections.abc import Sequence


def chunk(lengths: Sequence[int], micro_batches: int) -> list[list[int]]:
    """Split into ``micro_batches`` chunks whose largest token sum is the least possible.

    Positions, longest sequences first; fewer chunks only if there are fewer sequences. Exact
    among the consecutive splits of the sorted lengths, as Eq. 23–24: bisection on the largest sum,
    O(n·log Σ) after sorting. ``ValueError`` for fewer than one chunk.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be 1 or more, not {micro_batches}")
    order = _longest_first(lengths)
    if not order:
        return []
    low, high = max(lengths), sum(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(_split(lengths, order, middle)) <= micro_batches:
            high = middle
        else:
            low = middle + 1
    return _split(lengths, order, low, min(micro_batches, len(order)))


def least_chunks(lengths: Sequence[int], capacity: int) -> int:
    """Count the fewest chunks with at most ``capacity`` tokens each.

    ``ValueError`` when one sequence alone exceeds the capacity.
    """
    if lengths and max(lengths) > capacity:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens exceeds the capacity {capacity}"
            ". Raise the capacity"
        )
    return len(_split(lengths, _longest_first(lengths), capacity))


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _split(
    lengths: Sequence[int], order: Sequence[int], limit: int, exactly: int = 0
) -> list[list[int]]:
    """Fill chunk after chunk up to ``limit`` tokens.

    A chunk ends earlier if ``exactly`` so many chunks need the rest. The fewest chunks are found
    by filling each as far as it goes, since the split is consecutive.
    """
    chunks: list[list[int]] = []
    room = 0
    for place, i in enumerate(order):
        if not chunks or lengths[i] > room or exactly - len(chunks) >= len(order) - place:
            chunks.append([])
            room = limit
        chunks[-1].append(i)
        room -= lengths[i]
    return chunks
