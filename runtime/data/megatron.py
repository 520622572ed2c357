"""Tokens of a Megatron data set, ``NAME.idx`` and ``NAME.bin``: documents are samples.

``.idx``, little-endian: 0: magic; 9: u64 version; 17: u8 dtype code; 18: u64 sequences S;
26: u64 document starts D (documents + 1); 34: i32[S] tokens; i64[S] byte offsets;
i64[D] document starts, 0 … S; optionally i8[S] modes. ``.bin``: the tokens.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqplan.runtime.data.tokens import Tokens
from seqplan.runtime.errors import DataError

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class MegatronTokens:
    """Documents of the data set at ``path``, given with or without ``.idx`` or ``.bin``.

    Both files are mapped into memory and only requested ranges are read. ``DataError`` for files
    that are missing, truncated, foreign or hold no integers.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        stem = Path(path)
        stem = stem.with_suffix("") if stem.suffix in (".idx", ".bin") else stem
        self._index_path = stem.with_name(stem.name + ".idx")
        self._bin_path = stem.with_name(stem.name + ".bin")
        index = _map_file(self._index_path)
        if index[: len(_MAGIC)].tobytes() != _MAGIC or len(index) < _HEADER.size:
            raise DataError(f"{self._index_path}: is not a Megatron index, or is cut off")
        _, version, code, sequences, edges = _HEADER.unpack(index[: _HEADER.size].tobytes())
        if version != 1:
            raise DataError(f"{self._index_path}: is of version {version}; 1 is understood")
        if code not in _DTYPES:
            raise DataError(
                f"{self._index_path}: has dtype code {code}; tokens are integers (1 to 5 or 8)"
            )
        whole = _HEADER.size + 12 * sequences + 8 * edges
        if len(index) not in (whole, whole + sequences) or edges < 1:
            raise DataError(
                f"{self._index_path}: has {len(index)} bytes, its header requires {whole} or, with "
                f"modes, {whole + sequences}; it is cut off or damaged"
            )
        self._dtype = np.dtype(_DTYPES[code])
        self._bin = _map_file(self._bin_path)
        place = _HEADER.size
        self._lengths: npt.NDArray[np.int32]
        self._lengths = np.ndarray((sequences,), "<i4", index.data, place)
        place += 4 * sequences
        self._offsets: npt.NDArray[np.int64]
        self._offsets = np.ndarray((sequences,), "<i8", index.data, place)
        place += 8 * sequences
        self._starts: npt.NDArray[np.int64]
        self._starts = np.ndarray((edges,), "<i8", index.data, place)

    def length(self, id: int) -> int:
        first, last = self._sequences(id)
        return int(self._lengths[first:last].sum(dtype=np.int64))

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        first, last = self._sequences(id)
        tokens = np.empty(stop - start, dtype=np.int64)
        before = 0  # tokens of the document in front of the sequence at hand
        for sequence in range(first, last):
            length = int(self._lengths[sequence])
            low, high = max(start, before), min(stop, before + length)
            if low < high:
                offset = int(self._offsets[sequence]) + (low - before) * self._dtype.itemsize
                tokens[low - start : high - start] = self._read(offset, high - low)
            before += length
        return tokens

    def _sequences(self, id: int) -> tuple[int, int]:
        documents = len(self._starts) - 1
        if not 0 <= id < documents:
            raise DataError(
                f"the data has no such id, {self._index_path} has {documents} documents"
            )
        first, last = int(self._starts[id]), int(self._starts[id + 1])
        if not 0 <= first <= last <= len(self._lengths):
            raise DataError(f"{self._index_path}: its document starts are damaged; build it again")
        return first, last

    def _read(self, offset: int, count: int) -> npt.NDArray[np.integer]:
        stop = offset + count * self._dtype.itemsize
        if offset < 0 or stop > len(self._bin):
            raise DataError(
                f"{self._bin_path}: has {len(self._bin)} bytes, the index requires byte {stop}; it "
                "is cut off or belongs to another index"
            )
        return np.ndarray((count,), self._dtype, self._bin.data, offset)


def _map_file(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            return np.empty(0, dtype=np.uint8)  # an empty file cannot be mapped
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}. Check the path") from None
