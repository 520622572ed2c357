"""Token data from a file, by its suffix: Megatron ``.idx``/``.bin``, ``.npy``, ``.jsonl``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from seqplan.plans.format.canonical import parse_json
from seqplan.runtime.data.megatron import MegatronTokens
from seqplan.runtime.data.tokens import IndexedTokens, TokenData, Tokens
from seqplan.runtime.errors import DataError

FIELDS = ("tokens", "input_ids")
"""Where an object of a ``.jsonl`` line may hold its token ids."""


def token_file(path: str | os.PathLike[str]) -> TokenData:
    """Open the samples of a file: documents, rows or lines.

    ``.npy``: integers (samples, tokens), mapped into memory; ``.jsonl``: a list of token ids a
    line, or an object with one in ``tokens`` or ``input_ids``, held in memory. ``DataError`` for
    what cannot be read or is no such file.
    """
    match Path(path).suffix:
        case ".idx" | ".bin":
            return MegatronTokens(path)
        case ".npy":
            return IndexedTokens(_rows(path))
        case ".jsonl":
            return IndexedTokens(_lines(path))
    raise DataError(f"{path}: tokens come from .idx with .bin, .npy or .jsonl")


class FoldedTokens:
    """``data`` with every token id taken modulo ``vocab``, for a model with few of them."""

    def __init__(self, data: TokenData, vocab: int) -> None:
        self._data = data
        self._vocab = vocab

    def length(self, id: int) -> int:
        return self._data.length(id)

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        return self._data.tokens(id, start, stop) % self._vocab


def _rows(path: str | os.PathLike[str]) -> Any:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}. Check the path") from None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: is not a whole .npy file: {error}") from None
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise DataError(
            f"{path}: must be integers (samples, tokens), not {rows.dtype} in {rows.ndim} "
            "dimensions; one number a sample would be lengths"
        )
    return rows


def _lines(path: str | os.PathLike[str]) -> list[Any]:
    samples = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    samples.append(_sample(parse_json(line, finite=False)))
                except ValueError as error:
                    raise DataError(f"{path}:{number}: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error.reason}") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}. Check the path") from None
    return samples


def _sample(record: Any) -> Tokens:
    if isinstance(record, dict):
        name = next((name for name in FIELDS if name in record), None)
        if name is None:
            raise ValueError(f"the object has neither {' nor '.join(FIELDS)}")
        record = record[name]
    if not isinstance(record, list) or not all(type(token) is int for token in record):
        raise ValueError("must be a list of token ids")
    try:
        return np.array(record, dtype=np.int64)
    except OverflowError:
        raise ValueError("a token id does not fit 64 bits") from None
