"""One iteration's sequences, in the orders that the search needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from seqplan.plans.format.fields import MAX_INTEGER
from seqplan.plans.load import PhaseLoad
from seqplan.plans.plan import Plan

MOST_TOKENS = 2**31 - 1
"""Tokens of a sequence at most: kernels for packed sequences address 32-bit positions."""


@dataclass(frozen=True)
class Batch:
    """The sequences of one step: data-set ``ids`` and ``lengths`` (tokens), position by position.

    ``loss_tokens``: labels that count in the loss; by default Σ(length − 1). ``loads``: work of the
    sequences in phases before the language model.
    Raises ``ValueError`` for an empty batch, a length below 1, a step or an id below 0, unequal
    sizes, loss tokens below 0 or beyond the tokens, two loads of a name and work without tokens.
    """

    step: int
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    loss_tokens: int | None = None
    loads: tuple[PhaseLoad, ...] = ()

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError(f"step {self.step}: the batch has no sequences. Give at least one")
        if len(self.ids) != len(self.lengths):
            raise ValueError(
                f"step {self.step}: {len(self.ids)} ids but {len(self.lengths)} lengths"
                ". Give one id for each length"
            )
        if min(self.lengths) < 1:
            place = self.lengths.index(min(self.lengths))
            raise ValueError(
                f"step {self.step}: sequence {self.ids[place]} has length {min(self.lengths)}; "
                "lengths must be 1 or more"
            )
        if not 0 <= self.step <= MAX_INTEGER:
            raise ValueError(
                f"step {self.step}: steps are counted from 0. Give 0 or more, below 2**63"
            )
        if min(self.ids) < 0:
            raise ValueError(f"step {self.step}: id {min(self.ids)}; ids must be 0 or more")
        if max(self.ids) > MAX_INTEGER:
            raise ValueError(f"step {self.step}: id {max(self.ids)}; ids must be below 2**63")
        if self.loss_tokens is not None and not 0 <= self.loss_tokens <= self.tokens:
            raise ValueError(
                f"step {self.step}: {self.loss_tokens} loss tokens; there are from 0 to "
                f"{self.tokens}, every token at most"
            )
        self._check_loads()

    def _check_loads(self) -> None:
        names = [load.name for load in self.loads]
        if len(set(names)) < len(names):
            raise ValueError(f"step {self.step}: loads: {', '.join(names)}. Name each phase once")
        for load in self.loads:
            for place, (tokens, work_ms) in enumerate(zip(load.tokens, load.work_ms, strict=True)):
                if work_ms > 0 and not tokens:
                    raise ValueError(
                        f"step {self.step}: load {load.name}: sequence {self.ids[place]} has "
                        f"{work_ms:g} ms without tokens. Give its tokens, or 0 ms"
                    )

    def __getstate__(self) -> dict[str, object]:
        # For workers: without results that are kept, which they compute themselves.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_plan(cls, plan: Plan) -> Batch:
        """Return the sequences of a plan."""
        return cls(plan.step, plan.ids, plan.lengths, plan.loss_tokens, plan.loads)

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], step: int = 0) -> Batch:
        """Make a batch whose ids are the positions."""
        return cls(step, tuple(range(len(lengths))), tuple(int(length) for length in lengths))

    @cached_property
    def tokens(self) -> int:
        """Return Σ lengths."""
        return sum(self.lengths)

    @cached_property
    def memo(self) -> dict[object, object]:
        """Return results that parts of the planner keep for this batch."""
        return {}

    @cached_property
    def _distinct(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        values, counts = np.unique(np.asarray(self.lengths, dtype=np.int64), return_counts=True)
        return values[::-1].copy(), counts[::-1].copy()

    @cached_property
    def distinct(self) -> npt.NDArray[np.int64]:
        """Return the distinct lengths, descending; int64."""
        return self._distinct[0]

    @cached_property
    def multiplicity(self) -> npt.NDArray[np.int64]:
        """Count how often each length of ``distinct`` occurs; int64, in the same order."""
        return self._distinct[1]

    @cached_property
    def longest(self) -> int:
        """Return the length of the longest sequence (tokens)."""
        return int(self.distinct[0])

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """List, for each distinct length, the positions that have it, ascending."""
        lengths = -np.asarray(self.lengths, dtype=np.int64)
        order = tuple(np.argsort(lengths, kind="stable").tolist())
        ends = [0, *np.cumsum(self.multiplicity).tolist()]
        return tuple(order[start:end] for start, end in pairwise(ends))


def whole_lengths(lengths: object) -> npt.NDArray[np.int64]:
    """Return lengths (tokens) as an array.

    ``lengths``: a list, an array, a tensor on any device or a column of a table, of whole numbers
    of 1 or more, as integers or floats. ``TypeError`` for what holds no numbers, ``ValueError``
    with the place of the first length that is none.
    """
    if (
        isinstance(lengths, np.ndarray)
        and lengths.dtype.kind in "iu"
        and lengths.ndim == 1
        and lengths.size
        and not np.ma.is_masked(lengths)
        and 0 < lengths.min() <= lengths.max() <= MOST_TOKENS
    ):
        return np.array(lengths, dtype=np.int64)
    if callable(as_list := getattr(lengths, "tolist", None)):
        lengths = as_list()
    unordered = isinstance(lengths, str | bytes | dict | set | frozenset)
    if unordered or not isinstance(lengths, Iterable):
        raise TypeError(f"lengths: {lengths!r:.60}. Give a list, an array or a tensor of tokens")
    numbers = [_whole_length(place, length) for place, length in enumerate(lengths)]
    if not numbers:
        raise ValueError("lengths: there are no sequences. Give one or more")
    return np.array(numbers, dtype=np.int64)


def _whole_length(place: int, length: object) -> int:
    """Return a length (tokens) as an integer."""
    if callable(as_number := getattr(length, "item", None)) and getattr(length, "ndim", 0) == 0:
        length = as_number()
    number = length if isinstance(length, int | float) and not isinstance(length, bool) else 0
    if not 1 <= number < math.inf or number != int(number):
        raise ValueError(
            f"sequence {place} has length {length!r}. Give whole numbers of tokens, 1 or more"
        )
    if number > MOST_TOKENS:
        raise ValueError(
            f"sequence {place} has {number} tokens. Give {MOST_TOKENS} at most, the last position "
            "that attention kernels address"
        )
    return int(number)
