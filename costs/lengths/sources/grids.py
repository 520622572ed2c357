"""Patches of images and videos, from the grids that an image processor returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.error import LengthsError, shown

SUFFIX = "_grid_thw"
"""Ends the name of a column of grids: frames, patch rows and patch columns of each image."""

CHUNK = 1 << 16


def is_grid_field(field: str) -> bool:
    """Return whether a column holds grids, as ``image_grid_thw`` and ``video_grid_thw`` do."""
    return field.endswith(SUFFIX)


def read_grids(records: Iterable[tuple[str, Any]], field: str, out: Collector) -> None:
    """Read a sequence of rows · columns patches for each frame, which attends to itself.

    ``records``: the place and the grids of each, a list of (frames, rows, columns), empty or None
    without images. ``LengthsError`` for other values.
    """
    patches: list[int] = []
    places: list[str] = []
    number = with_images = 0

    def keep() -> None:
        out.add(patches, lambda i: places[i])
        patches.clear()
        places.clear()

    for place, grids in records:
        number += 1
        with_images += bool(grids)
        frames = list_frames(grids, field, place)
        patches += frames
        places += [place] * len(frames)
        if len(patches) >= CHUNK:
            keep()
    keep()
    out.note(f"patches of each frame; {with_images:,} of {number:,} records have images")


def list_frames(grids: Any, field: str, place: str) -> list[int]:
    """List the patches of each frame of a record's grids; see ``read_grids``."""
    checked = _check_grids(grids, field, place)
    return [grid[1] * grid[2] for grid in checked for _ in range(grid[0])]


def _check_grids(grids: Any, field: str, place: str) -> list[list[int]]:
    if grids is None:
        return []
    if type(grids) is list and grids and all(type(size) is int for size in grids):
        grids = [grids]  # the grid of one image
    if type(grids) is not list or not all(_is_grid(grid) for grid in grids):
        raise LengthsError(
            f"{place}: field {field!r} is {shown(grids)}. It must list frames, rows and columns "
            "above 0 for each image"
        )
    return grids


def _is_grid(grid: Any) -> bool:
    return (
        type(grid) is list
        and len(grid) == 3
        and all(type(size) is int and size > 0 for size in grid)
    )
