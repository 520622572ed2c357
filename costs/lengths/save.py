"""Keeping lengths in a ``.npy`` file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.error import LengthsError
from seqplan.plans.format.atomic_file import atomic_write

CHUNK = 1 << 20


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise ``LengthsError`` unless ``path`` can become a ``.npy`` file; call before long work."""
    path = Path(path)
    if path.suffix != ".npy":
        raise LengthsError(f"{path}: lengths are written as .npy; give a name that ends so")
    if path.is_dir():
        raise LengthsError(f"{path}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise LengthsError(f"{path}: there is no folder {path.parent}; make it first")


def save_lengths(path: str | os.PathLike[str], values: NDArray[np.integer]) -> None:
    """Write lengths as a one-dimensional uint32 ``.npy``, whole or not at all.

    ``OSError`` that names ``path`` when it cannot be written, for a full disk too.
    """
    check_output(path)
    with atomic_write(path, "wb") as file:
        header = {"descr": "<u4", "fortran_order": False, "shape": (len(values),)}
        np.lib.format.write_array_header_1_0(file, header)
        # numpy's writer goes past the file object and does not report a full disk.
        for start in range(0, len(values), CHUNK):
            file.write(values[start : start + CHUNK].astype("<u4").data)
