"""One iteration's sequences, in the orders that the search needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqplan.plans.format.fields import MAX_INTEGER


@dataclass(frozen=True)
class Batch:
    """The sequences of one step: data-set ``ids`` and ``lengths`` (tokens), position by position.

    ``loss_tokens``: labels that count in the loss; by default Σ(length − 1).
    Raises ``ValueError`` for an empty batch, a length below 1, a step or an id below 0, unequal
    sizes, and loss tokens below 0 or beyond the tokens.
    """

    step: int
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    loss_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError(f"step {self.step}: the batch has no sequences")
        if len(self.ids) != len(self.lengths):
            raise ValueError(
                f"step {self.step}: {len(self.ids)} ids but {len(self.lengths)} lengths"
            )
        if min(self.lengths) < 1:
            place = self.lengths.index(min(self.lengths))
            raise ValueError(
                f"step {self.step}: sequence {self.ids[place]} has length {min(self.lengths)}; "
                "lengths must be 1 or more"
            )
        if self.step < 0:
            raise ValueError(f"step {self.step}: steps are counted from 0")
        if min(self.ids) < 0:
            raise ValueError(f"step {self.step}: id {min(self.ids)}; ids must be 0 or more")
        if self.loss_tokens is not None and not 0 <= self.loss_tokens <= self.tokens:
            raise ValueError(
                f"step {self.step}: {self.loss_tokens} loss tokens; there are from 0 to "
                f"{self.tokens}, every token at most"
            )

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], step: int = 0) -> Batch:
        """Make a batch whose ids are the positions."""
        return cls(step, tuple(range(len(lengths))), tuple(int(length) for length in lengths))

    @cached_property
    def tokens(self) -> int:
        """Return Σ lengths."""
        return sum(self.lengths)

    @cached_property
    def _distinct(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        values, counts = np.unique(np.asarray(self.lengths, dtype=np.int64), return_counts=True)
        return values[::-1].copy(), counts[::-1].copy()

    @property
    def distinct(self) -> npt.NDArray[np.int64]:
        """Return the distinct lengths, descending; int64."""
        return self._distinct[0]

    @property
    def multiplicity(self) -> npt.NDArray[np.int64]:
        """Count how often each length of ``distinct`` occurs; int64, in the same order."""
        return self._distinct[1]

    @property
    def longest(self) -> int:
        """Return the length of the longest sequence (tokens)."""
        return int(self.distinct[0])

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """List, for each distinct length, the positions that have it, ascending."""
        order = np.argsort(-np.asarray(self.lengths, dtype=np.int64), kind="stable")
        cuts = np.cumsum(self.multiplicity)[:-1]
        return tuple(tuple(part.tolist()) for part in np.split(order, cuts))


def whole_lengths(lengths: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return lengths (tokens) as an array; ``ValueError`` where they are no whole numbers."""
    try:
        values = np.asarray(lengths)
    except ValueError:  # lists of several sizes
        values = np.empty((0, 0))
    if values.ndim != 1 or not len(values):
        raise ValueError("lengths are no list of at least one sequence")
    if values.dtype.kind in "iuf" and values.max() >= MAX_INTEGER:
        raise ValueError(f"a length of {values.max()} tokens is beyond what a plan can state")
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    whole = values.dtype.kind == "f" and np.isfinite(values).all()
    if not whole or (values != np.floor(values)).any():
        raise ValueError("lengths are not whole numbers of tokens")
    return values.astype(np.int64)
