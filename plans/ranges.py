"""Integers, such as ranks or steps, as the consecutive ranges that they form."""

from __future__ import annotations

from collections.abc import Iterable


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Join distinct integers to half-open ranges, ascending."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges


def ranges_text(numbers: Iterable[int], separator: str = "") -> str:
    """Write distinct integers as ``0–3, 8``; ``separator`` stands between thousands."""
    form = separator or "d"
    return ", ".join(
        f"{first:{form}}" if stop == first + 1 else f"{first:{form}}–{stop - 1:{form}}"
        for first, stop in ranges_of(numbers)
    )
