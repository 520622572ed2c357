"""Lengths from a one-dimensional integer ``.npy`` file, read through a memory map."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seqplan.costs.lengths.sources.collector import Collector, number_places
from seqplan.costs.lengths.sources.error import LengthsError, first_line

CHUNK = 1 << 20
_MAGIC = b"\x93NUMPY"


def read_npy(path: Path, collector: Collector) -> None:
    """Read every element as a length. ``LengthsError`` on another dtype or shape, or damage."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise LengthsError(f"{path}: is not a .npy file; write one with numpy.save")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy lets the parser's errors through for a damaged header
        raise LengthsError(
            f"{path}: is not a whole .npy file: {first_line(error)}. Write or download it again"
        ) from None
    if array.dtype.kind not in "iu":
        raise LengthsError(
            f"{path}: holds {array.dtype}, lengths are integers; "
            "cast it, for example with .astype('int64')"
        )
    if array.ndim != 1:
        raise LengthsError(
            f"{path}: has shape {array.shape}, lengths are one-dimensional. Flatten it"
        )
    collector.expect(len(array))
    for start in range(0, len(array), CHUNK):
        collector.add(array[start : start + CHUNK], number_places(f"{path}: index", start))
