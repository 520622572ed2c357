"""Lengths from a Megatron ``.idx`` file: a document is the sum of its sequences.

Layout, little-endian: 0: magic; 9: u64 version; 17: u8 dtype code; 18: u64 sequences S;
26: u64 document starts D (documents + 1); 34: i32[S] tokens; i64[S] byte offsets;
i64[D] document starts, 0 … S; optionally i8[S] modes, recognized by the size of the file only.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.collector import Collector, number_places
from seqplan.costs.lengths.sources.error import LengthsError

MAGIC = b"MMIDIDX\0\0"
CHUNK = 1 << 18
_HEADER = struct.Struct("<9sQBQQ")
_DTYPE_CODES = range(1, 9)


class _Index(NamedTuple):
    tokens: NDArray[np.int32]
    """Shape (S,), unaligned: tokens of each sequence."""

    starts: NDArray[np.int64]
    """Shape (D,), unaligned: the first sequence of each document, closed by S."""


def read_idx(path: Path, collector: Collector) -> None:
    """Read one length a document. ``LengthsError`` on a truncated, foreign or inconsistent file."""
    tokens, starts = _open(path)
    documents = len(starts) - 1
    collector.expect(documents)
    for first in range(0, documents, CHUNK):
        # Copied, because everything below is several times faster on aligned memory.
        edges = np.array(starts[first : first + CHUNK + 1])
        _check_starts(edges, first, len(tokens), path)
        part = np.array(tokens[edges[0] : edges[-1]])
        if part.min() < 0:
            at = int(part.argmin())
            raise LengthsError(
                f"{path}: sequence {edges[0] + at}: length {part[at]} is negative; "
                "the index is damaged, build it again"
            )
        sums = np.add.reduceat(part, edges[:-1] - edges[0], dtype=np.int64)
        collector.add(sums, number_places(f"{path}: document", first))


def _open(path: Path) -> _Index:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if not MAGIC.startswith(head[: len(MAGIC)]) or not head:
        raise LengthsError(
            f"{path}: is not a Megatron index (it does not begin with MMIDIDX); "
            "give the .idx that was written next to the .bin"
        )
    if len(head) < _HEADER.size:
        raise LengthsError(
            f"{path}: is truncated: {size} bytes, less than a header of {_HEADER.size}"
            ". Write or download it again"
        )
    _, version, code, sequences, edges = _HEADER.unpack(head)
    if version != 1:
        raise LengthsError(f"{path}: is a Megatron index of version {version}; 1 is understood")
    if code not in _DTYPE_CODES:
        raise LengthsError(f"{path}: has dtype code {code}; Megatron writes 1 to 8")
    whole = _HEADER.size + 12 * sequences + 8 * edges
    if size not in (whole, whole + sequences):
        raise LengthsError(
            f"{path}: is {'truncated' if size < whole else 'damaged'}: {size} bytes, but its "
            f"header ({sequences} sequences, {edges - 1} documents) requires {whole} "
            f"or, with modes, {whole + sequences}"
        )
    if sequences == 0 or edges < 2:
        raise LengthsError(f"{path}: holds no sequences. Name a source with sequences")
    raw = np.memmap(path, np.uint8, "r")
    index = _Index(
        np.ndarray((sequences,), "<i4", raw.data, _HEADER.size),
        np.ndarray((edges,), "<i8", raw.data, _HEADER.size + 12 * sequences),
    )
    if index.starts[0] != 0 or index.starts[-1] != sequences:
        raise LengthsError(
            f"{path}: document starts run from {index.starts[0]} to {index.starts[-1]}, not from 0 "
            f"to {sequences} sequences; the index is damaged, build it again"
        )
    return index


def _check_starts(edges: NDArray[np.int64], first: int, sequences: int, path: Path) -> None:
    """Reject document starts that do not climb from 0 to S."""
    if edges.min() < 0 or edges.max() > sequences:
        raise LengthsError(
            f"{path}: document starts point outside its {sequences} sequences; "
            "the index is damaged, build it again"
        )
    steps = np.diff(edges)
    if steps.min() < 1:
        at = first + int(np.flatnonzero(steps < 1)[0])
        raise LengthsError(
            f"{path}: document {at}: "
            + (
                "has no sequences; remove it from the data set"
                if steps[at - first] == 0
                else "starts after the next one; the index is damaged, build it again"
            )
        )
