"""Rows of packed tensors that pieces are of: a range if there is one, else an index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqplan.plans.views.sharding import Range
from seqplan.runtime.device_copy import copy_to_device
from seqplan.runtime.sequence_parallel.kernels.base import Piece, Pieces, Rows

ALL: Rows = slice(None)


@lru_cache(maxsize=4096)
def compact_queries(pieces: Pieces) -> tuple[tuple[Range, ...], Pieces]:
    """Return the ranges of query rows of ``pieces``, ascending, and the pieces counted in them."""
    ranges: list[Range] = []
    compact: list[Piece] = []
    rows = 0
    for piece in pieces:
        if ranges and ranges[-1][1] == piece.q0:
            ranges[-1] = (ranges[-1][0], piece.q1)
        else:
            ranges.append((piece.q0, piece.q1))
        compact.append(piece._replace(q0=rows, q1=rows + piece.q1 - piece.q0))
        rows += piece.q1 - piece.q0
    return tuple(ranges), tuple(compact)


def query_rows(pieces: Pieces, tokens: int, device: torch.device) -> tuple[Rows, Pieces]:
    """Return the rows of ``pieces`` among ``tokens`` queries, and the pieces counted in them."""
    ranges, compact = compact_queries(pieces)
    if len(ranges) == 1:
        (rows,) = ranges
        return (ALL if rows == (0, tokens) else slice(*rows)), compact
    return _index(ranges, device), compact


@lru_cache(maxsize=64)
def _index(ranges: tuple[Range, ...], device: torch.device) -> Tensor:
    return copy_to_device(concatenate_ranges(ranges), device)


def take_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """Return rows of a tensor: a view of a range, a copy for an index."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def concatenate_ranges(ranges: Sequence[Range]) -> npt.NDArray[np.int64]:
    """Return the integers of all ranges one after the other."""
    if not ranges:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in ranges])
