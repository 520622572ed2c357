"""First-fit-decreasing windows and round-robin: how fixed-window trainers fill a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def first_fit_decreasing(lengths: Sequence[int], window: int, unit: int = 1) -> list[list[int]]:
    """Fill windows of at most ``window`` tokens with positions; lengths are padded to ``unit``s.

    Longest first, each into the first window with room. ``ValueError`` when a sequence exceeds the
    window.
    """
    windows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        padded = -(-lengths[i] // unit) * unit
        if padded > window:
            raise ValueError(
                f"a sequence of {lengths[i]} tokens exceeds the window of {window}"
                ". Use a longer window"
            )
        place = next((j for j, left in enumerate(room) if left >= padded), None)
        if place is None:
            place = len(windows)
            windows.append([])
            room.append(window)
        windows[place].append(i)
        room[place] -= padded
    return windows


def round_robin(windows: Sequence[T], pipelines: int) -> list[list[T]]:
    """Deal windows to pipelines in turn."""
    return [list(windows[k::pipelines]) for k in range(pipelines)]
