"""Gathering checked lengths from every source into one growing array."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.error import LengthsError

MAX_LENGTH = 2**31 - 1
"""The longest sequence that is accepted, in tokens."""

MOST_RESERVED = 1 << 24

Progress = Callable[[int, int | None], None]
"""Called with the sequences read so far and their total, None while it is not known."""


@dataclass(frozen=True, slots=True)
class Source:
    """Result of one source.

    ``notes``: choices and estimates on the way; ``loss_tokens``: tokens of an assistant, if
    the source marks them.
    """

    path: str
    sequences: int
    tokens: int
    notes: tuple[str, ...]
    loss_tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Sequence lengths in tokens, int64 of shape (sequences,), source after source."""

    values: NDArray[np.int64]
    sources: tuple[Source, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(source.tokens for source in self.sources)


class Collector:
    """Takes chunks of lengths, rejects values that are no length, and keeps the rest.

    The array grows in place by half, so that memory stays near what the lengths need however
    many chunks there are; a source that knows its number of sequences reserves room at once.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._values = np.empty(0, np.int64)
        self._used = 0
        self._total: int | None = None
        self._sources: list[Source] = []
        self._path = ""
        self._start = 0
        self._notes: list[str] = []
        self._loss_tokens: int | None = None
        self._progress = progress

    def begin(self, path: str) -> None:
        """Begin the source ``path``: what follows comes from it."""
        self._path, self._start, self._notes, self._total = path, self._used, [], None
        self._loss_tokens = None

    def expect(self, sequences: int) -> None:
        """Expect this many sequences of the source."""
        self._total = self._used + sequences
        # A damaged header may promise anything: beyond the first millions, growth is earned.
        room = self._used + min(sequences, MOST_RESERVED)
        if room > len(self._values):
            self._resize(room)

    def note(self, text: str) -> None:
        """Note something that the caller should know about the source."""
        self._notes.append(text)

    def count_loss(self, tokens: int) -> None:
        """Set the tokens of the source that count in a loss."""
        self._loss_tokens = tokens

    def add(self, lengths: NDArray[Any] | Iterable[int], place: Callable[[int], str]) -> None:
        """Keep a chunk of integers; ``place(i)`` names the source of its i-th in an error."""
        chunk = np.asarray(lengths if isinstance(lengths, np.ndarray) else list(lengths))
        if not len(chunk):
            return
        # Compared in its dtype: a large unsigned value would be negative once converted.
        if chunk.min() < 1 or chunk.max() > MAX_LENGTH:
            at = int(np.flatnonzero((chunk < 1) | (chunk > MAX_LENGTH))[0])
            raise length_error(int(chunk[at]), place(at))
        end = self._used + len(chunk)
        if end > len(self._values):
            self._resize(max(end, len(self._values) * 3 // 2, 1 << 16))
        self._values[self._used : end] = chunk
        self._used = end
        if self._progress is not None:
            self._progress(end, self._total)

    def end(self) -> None:
        """End the source; ``LengthsError`` when it held no sequence."""
        if self._used == self._start:
            raise LengthsError(f"{self._path}: holds no sequences. Name a source with sequences")
        tokens = int(self._values[self._start : self._used].sum())
        count = self._used - self._start
        source = Source(self._path, count, tokens, tuple(self._notes), self._loss_tokens)
        self._sources.append(source)

    def lengths(self) -> Lengths:
        """Return all that was kept. The collector is spent."""
        self._resize(self._used)
        return Lengths(self._values, tuple(self._sources))

    def _resize(self, size: int) -> None:
        # In place (realloc): a copy would hold old and new at once. No view of it leaves here
        # before the last resize, so numpy's check, which debuggers upset, is not needed.
        self._values.resize(size, refcheck=False)


def number_places(prefix: str, start: int) -> Callable[[int], str]:
    """Count places on from ``start``: ``prefix start``, ``prefix start+1``, …"""
    return lambda i: f"{prefix} {start + i}"


def length_error(value: int, place: str) -> LengthsError:
    """Describe why an integer is not a length."""
    if value > MAX_LENGTH:
        return LengthsError(
            f"{place}: length {value} is above the largest accepted, {MAX_LENGTH}; "
            "split the sequence or fix the value"
        )
    return LengthsError(
        f"{place}: length {value} is not positive; remove the sequence from the source"
    )
