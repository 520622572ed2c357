"""What names a data set's lengths in a proposal."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def lengths_digest(lengths: npt.NDArray[np.integer]) -> str:
    """Return the sha256 of the lengths as little-endian int64."""
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(lengths, dtype="<i8").data).hexdigest()
