"""Costs of the lengths of a batch on each class, as the fill reads them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.bubbles import Bubbles
from seqplan.planner.placement.fleet import ROUND, ClassMode, Floats, Ints, PipelineClass
from seqplan.planner.placement.ramps import Ramps


@dataclass(frozen=True, slots=True)
class ModeCosts:
    """Costs of each length in one mode, as plain lists.

    ``cheap_from`` and ``held_from``: the first index from each on that is as cheap in the mode as
    in any, or that the mode holds; None if there is one mode.
    """

    a: float
    b: float
    c: float
    capacity: int
    work: list[float]
    padded: list[int]
    cheap_from: list[int] | None
    held_from: list[int] | None

    def reach(self, room_ms: float) -> float:
        """Return the length (tokens) up to which a sequence fits so much work."""
        if room_ms <= 0:
            return 0.0
        limit = 2 * room_ms / (self.b + sqrt(self.b * self.b + 4 * self.a * room_ms))
        return min(limit, self.capacity)


EQUAL, OF_TOKENS = 0.8, 0.9
"""Lengths are about equal from this share of the middle one to its inverse, if so many of a batch's
tokens are of such sequences: then micro-batches have whole numbers of them, or leave room."""

_Key = tuple[int, int, tuple[ClassMode, ...], float, bool, int | None]

NO_RAMPS: Floats = np.zeros(0)


class ClassCosts:
    """Costs of the distinct lengths of a batch, descending, on a class and by mode.

    ``work_ms`` (modes, n); ``padded_lengths`` (n,) in tokens; ``preference`` (n, modes): modes from
    the cheapest, with the tokens' share of c. ``cheap_from`` and ``held_from`` (modes, n + 1): see
    ``ModeCosts``. All are C-contiguous. ``of_one_mode``: those of a class of one mode, which
    classes share. ``full_ms``: the work that fills a micro-batch, where stages leave it less than
    MaxLen holds. ``sequences``: of the batch. ``equal_up_to``: the longest of about equal lengths
    (tokens), 0 if others matter; ``together``: how many of these share a micro-batch, 0 if fills
    choose. ``ramps``: the sizes of micro-batches, if not equal.
    """

    def __init__(
        self,
        lengths: Ints,
        pipeline_class: PipelineClass,
        of_one_mode: tuple[Ints, Ints] | None = None,
        full_ms: float = inf,
        sequences: int = 0,
        equal_up_to: int = 0,
    ) -> None:
        self.equal_up_to, self.together = equal_up_to, 0
        self.pp, self.modes = pipeline_class.pp, pipeline_class.all_modes
        self.forward_fraction = pipeline_class.forward_fraction
        self.bubbles = Bubbles.from_forward(self.pp, self.forward_fraction, sequences)
        self.ramps: Ramps | None = None
        self.lengths = lengths
        tokens = lengths.astype(np.float64)
        padded = pipeline_class.padded(lengths)
        self.padded_lengths: Ints = np.ascontiguousarray(padded)
        self.work_ms: Floats = np.array([tokens * (m.a * tokens + m.b) for m in self.modes])
        self.coefficients: Floats = np.array([[mode.a, mode.b, mode.c] for mode in self.modes])
        self.capacities: Ints = np.array([mode.capacity for mode in self.modes], dtype=np.int64)
        if len(self.modes) == 1:
            self.preference, self.cheap_from = of_one_mode or prefer_one_mode(lengths)
            self.held_from = self.cheap_from
            return
        share = np.array([padded * (mode.c / _full_tokens(mode, full_ms)) for mode in self.modes])
        holds = np.array([padded <= mode.capacity for mode in self.modes])
        whole = np.where(holds, self.work_ms + share, np.inf)
        order = np.argsort(whole, axis=0, kind="stable").T
        self.preference = np.ascontiguousarray(order, dtype=np.int64)
        self.cheap_from = _next_true(holds & (self.work_ms <= whole.min(axis=0) * ROUND))
        self.held_from = _next_true(holds)

    def with_sizes(self, *, ramped: bool, together: int | None) -> ClassCosts:
        """Return the same costs for micro-batches of the sizes of ramps, or of equal sequences.

        ``together``: how many; None as if sequences were not equal.
        """
        sized = copy(self)
        sized.ramps = Ramps.from_forward(self.pp, self.forward_fraction) if ramped else None
        sized.together = together or 0
        sized.equal_up_to = 0 if together is None else self.equal_up_to
        sized.__dict__.pop("compiled", None)
        return sized

    @cached_property
    def by_mode(self) -> list[ModeCosts]:
        """List the costs of each mode for plain Python."""
        several, padded = len(self.modes) > 1, self.padded_lengths.tolist()
        return [
            ModeCosts(
                mode.a,
                mode.b,
                mode.c,
                mode.capacity,
                self.work_ms[m].tolist(),
                padded,
                self.cheap_from[m].tolist() if several else None,
                self.held_from[m].tolist() if several else None,
            )
            for m, mode in enumerate(self.modes)
        ]

    @cached_property
    def preferred(self) -> list[list[int]]:
        """List the modes of each length, from the cheapest."""
        preferred: list[list[int]] = self.preference.tolist()
        return preferred

    @cached_property
    def compiled(self) -> object:
        """The same for the native extension, which checks it once."""
        from seqplan.planner.placement import fill_kernel

        return fill_kernel.make_costs(
            self.lengths,
            self.padded_lengths,
            self.work_ms,
            self.preference,
            self.cheap_from,
            self.held_from,
            self.coefficients,
            self.capacities,
            self.pp,
            self.bubbles.of_many,
            self.bubbles.of_few,
            self.bubbles.spread,
            self.equal_up_to,
            self.together,
            NO_RAMPS if self.ramps is None else self.ramps.shares,
            NO_RAMPS if self.ramps is None else self.ramps.weights,
        )

    def longest_alone(self, target_ms: float) -> int:
        """Return the longest sequence (tokens) that alone ends by the target."""
        longest = 0
        for mode in self.modes:
            work = target_ms * ROUND / self.pp - mode.c
            if work > 0:
                root = sqrt(mode.b * mode.b + 4 * mode.a * work)
                longest = max(longest, min(mode.capacity, int(2 * work / (mode.b + root) * ROUND)))
        return longest


def _full_tokens(mode: ClassMode, full_ms: float) -> float:
    """Return the tokens of a micro-batch that MaxLen fills, or so much work."""
    return max(min(mode.capacity, full_ms / mode.b if mode.b else inf), 1.0)


def prefer_one_mode(lengths: Ints) -> tuple[Ints, Ints]:
    """Return the preference and the next indices of lengths in one mode, which skips none."""
    n = len(lengths)
    return np.zeros((n, 1), dtype=np.int64), np.arange(n + 1, dtype=np.int64)[None]


def _next_true(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    """Return the index of the first true value from each on, row by row; n without one."""
    rows, n = mask.shape
    at = np.where(mask, np.arange(n), n)
    following = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1]
    return np.ascontiguousarray(
        np.concatenate([following, np.full((rows, 1), n)], axis=1), dtype=np.int64
    )


def find_equal(lengths: Ints, counts: Ints) -> int:
    """Find the longest of about equal lengths (tokens); 0 if too many tokens are of others.

    ``lengths``: distinct ones, descending; ``counts``: of sequences of each.
    """
    tokens = lengths.astype(np.float64) * counts
    before = np.cumsum(tokens)
    middle = float(lengths[np.searchsorted(before, before[-1] / 2)])
    equal = (lengths >= EQUAL * middle) & (lengths <= middle / EQUAL)
    return int(middle / EQUAL) if tokens[equal].sum() >= OF_TOKENS * before[-1] else 0


class FillTables:
    """The distinct lengths of a batch, and the costs that its fills share."""

    def __init__(self, lengths: Ints, sequences: int = 0, equal_up_to: int = 0) -> None:
        self.array, self._sequences, self.equal_up_to = lengths, sequences, equal_up_to
        self._costs: dict[
            tuple[int, int, tuple[ClassMode, ...], float, bool, int | None], ClassCosts
        ] = {}

    @classmethod
    def from_batch(cls, batch: Batch) -> FillTables:
        """Return the tables of a batch, which the first call makes."""
        tables = batch.memo.get(cls)
        if not isinstance(tables, FillTables):
            tables = batch.memo[cls] = cls(
                batch.distinct, len(batch.lengths), find_equal(batch.distinct, batch.multiplicity)
            )
        return tables

    @cached_property
    def lengths(self) -> list[int]:
        """List the lengths."""
        lengths: list[int] = self.array.tolist()
        return lengths

    @cached_property
    def negated(self) -> list[int]:
        """List the lengths negated, ascending."""
        return [-length for length in self.lengths]

    @cached_property
    def _of_one_mode(self) -> tuple[Ints, Ints]:
        return prefer_one_mode(self.array)

    def find_costs(
        self,
        pipeline_class: PipelineClass,
        full_ms: float = inf,
        *,
        ramped: bool = False,
        together: int | None = 0,
    ) -> ClassCosts:
        """Return the costs on a class, which the first call computes."""
        pp, unit, modes = pipeline_class.pp, pipeline_class.unit, pipeline_class.all_modes
        ramped, together = ramped and pp > 1, together if pp > 1 else 0
        key = pp, unit, modes, full_ms, ramped, together
        if key not in self._costs:
            if ramped or together != 0:
                costs = self.find_costs(pipeline_class, full_ms)
                self._costs[key] = costs.with_sizes(ramped=ramped, together=together)
            else:
                self._costs[key] = ClassCosts(
                    self.array,
                    pipeline_class,
                    self._of_one_mode,
                    full_ms,
                    self._sequences,
                    self.equal_up_to,
                )
        return self._costs[key]
