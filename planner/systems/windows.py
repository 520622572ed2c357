"""First-fit-decreasing windows and round-robin: how fixed-window trainers fill a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class FirstFit:
    """Windows of equal size that fill in first-fit order, in O(log windows) a sequence.

    ``most``: windows that may be opened, such as one for each sequence.
    """

    def __init__(self, window: int, most: int) -> None:
        self._window = window
        self._leaves = 1 << max(0, most - 1).bit_length()
        # A binary tree of the largest room below each node; the leaves are windows.
        self._room = [window] * (2 * self._leaves)

    def place(self, tokens: int) -> int:
        """Put ``tokens`` into the first window with room; return its number.

        ``ValueError`` for more tokens than a window holds.
        """
        if tokens > self._window:
            raise ValueError(
                f"a sequence of {tokens} tokens exceeds the window of {self._window}. Use a longer "
                "window"
            )
        room, node = self._room, 1
        while node < self._leaves:
            node *= 2
            if room[node] < tokens:
                node += 1
        number = node - self._leaves
        room[node] -= tokens
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
        return number


def fill_in_order(tokens: Sequence[int], window: int) -> list[list[int]]:
    """Fill windows with positions in their order, each into the first window with room."""
    windows: list[list[int]] = []
    rooms = FirstFit(window, len(tokens))
    for i, count in enumerate(tokens):
        number = rooms.place(count)
        if number == len(windows):
            windows.append([])
        windows[number].append(i)
    return windows


def first_fit_decreasing(lengths: Sequence[int], window: int, unit: int = 1) -> list[list[int]]:
    """Fill windows of at most ``window`` tokens with positions; lengths are padded to ``unit``s.

    Longest first, each into the first window with room. ``ValueError`` when a padded sequence
    exceeds the window.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    windows = fill_in_order([-(-lengths[i] // unit) * unit for i in order], window)
    return [[order[place] for place in places] for places in windows]


def round_robin(windows: Sequence[T], pipelines: int) -> list[list[T]]:
    """Deal windows to pipelines in turn."""
    return [list(windows[k::pipelines]) for k in range(pipelines)]
