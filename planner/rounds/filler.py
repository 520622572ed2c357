"""Filling rounds to targets: in each, groups of one or several degrees, each with one micro-batch.

A round's groups run side by side and it lasts as long as the slowest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.placement.class_fill import PythonFill
from seqplan.planner.placement.fleet import (
    Bin,
    ClassPlacement,
    Ints,
    PipelineClass,
    longest_alone,
)
from seqplan.planner.placement.kernel import KernelFill, PackedPlacement, kernel_fills

HALVINGS = 6
"""Steps of the search for the least time in which a round takes all tokens that it can."""

SPARED = 0.03
"""Share of those tokens that it may leave."""

_ROUND = 1.0 + 1e-12


@dataclass(frozen=True)
class Sequences:
    """Distinct lengths (tokens, descending) and how many sequences have each."""

    lengths: Ints
    counts: Ints

    @property
    def tokens(self) -> int:
        """Return all tokens."""
        return int(self.lengths @ self.counts)


@dataclass(frozen=True)
class Round:
    """Groups of one round, largest degree first: (index of the class, its micro-batch)."""

    groups: tuple[tuple[int, Bin], ...]
    time_ms: float


_OfClass = tuple[ClassPlacement | PackedPlacement, tuple[float, ...]]
"""What groups of a class were given, and each group's time with the overhead that was counted."""


@dataclass(frozen=True)
class _Part:
    """What one class of a round's groups was given, still packed perhaps."""

    class_index: int
    placement: ClassPlacement | PackedPlacement


@dataclass(frozen=True)
class _FilledRound:
    """One round, its time, and what is left of each length after it."""

    parts: tuple[_Part, ...]
    time_ms: float
    left: Ints


@dataclass(frozen=True)
class FilledRounds:
    """Rounds filled to targets; ``times_ms``: of each round."""

    parts: tuple[tuple[_Part, ...], ...]
    times_ms: tuple[float, ...]

    @property
    def total_ms(self) -> float:
        """Return Σ rounds: they run one after another."""
        return sum(self.times_ms)

    def __add__(self, after: FilledRounds) -> FilledRounds:
        """Return these rounds and others after them."""
        return FilledRounds(self.parts + after.parts, self.times_ms + after.times_ms)

    def rounds(self) -> tuple[Round, ...]:
        """Return the groups that have sequences, round by round."""
        return tuple(
            Round(tuple(group for part in of_round for group in _groups(part)), time)
            for of_round, time in zip(self.parts, self.times_ms, strict=True)
        )


def _groups(part: _Part) -> list[tuple[int, Bin]]:
    placement = part.placement
    unpacked = placement.unpack() if isinstance(placement, PackedPlacement) else placement
    return [
        (part.class_index, [entry for micro in pipeline for entry in micro])
        for pipeline in unpacked
        if pipeline
    ]


def _rounds_of(filled: Sequence[_FilledRound]) -> FilledRounds:
    return FilledRounds(
        tuple(of_round.parts for of_round in filled),
        tuple(of_round.time_ms for of_round in filled),
    )


class RoundsFiller:
    """Fills rounds one after another, each to a target: longest sequences first, then what fits.

    ``classes``: the degrees, largest first, each with the ranks of a group as its ``gpus`` and
    with any ``count``. ``one_each``: a group runs its sequences one by one, each a micro-batch.
    ``ValueError`` where a sequence fits none.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        sequences: Sequences,
        ranks: int,
        *,
        one_each: bool = False,
    ) -> None:
        longest = int(sequences.lengths[0])
        if longest > max(c.capacity for c in classes):
            raise ValueError(f"a sequence of {longest} tokens fits no group")
        if one_each:
            classes = [replace(c, unit=c.capacity) for c in classes]
        self.classes = tuple(classes)
        self.one_each = one_each
        self.ranks = ranks
        self.sequences = sequences
        self._lengths: list[int] = sequences.lengths.tolist()
        work = np.stack([c.work_ms(sequences.lengths) for c in classes])
        overheads = np.array([[c.c] for c in classes])
        holds = np.stack([sequences.lengths <= c.capacity for c in classes])
        sizes = np.array([[float(c.gpus)] for c in classes])
        self._alone_ms: list[float] = np.where(holds, work + overheads, np.inf).min(axis=0).tolist()
        smallest = (len(classes) - 1 - np.argmax(holds[::-1], axis=0)).tolist()
        self._full_ms = [
            classes[k].capacity * (classes[k].a * length + classes[k].b) + classes[k].c
            for k, length in zip(smallest, self._lengths, strict=True)
        ]
        paid = work + overheads if one_each else work
        self._area_each = np.where(holds, sizes * paid, np.inf).min(axis=0)
        self.area_ms = float(self._area_each @ sequences.counts) / ranks
        self._compiled = kernel_fills(classes, longest)
        self.longest_ms = max(self._alone_ms)
        self.overhead_ms = 0.0 if one_each else min(c.c for c in classes)

    def fill(self, targets_ms: Sequence[float]) -> FilledRounds | None:
        """Fill rounds with these targets, each raised to the longest sequence that is left.

        None where sequences are left.
        """
        counts = self.sequences.counts
        filled: list[_FilledRound] = []
        for target in targets_ms:
            if not counts.any():
                break
            longest = int(np.argmax(counts > 0))
            filled.append(self._round(counts, longest, max(target, self._alone_ms[longest])))
            counts = filled[-1].left
        return None if counts.any() else _rounds_of(filled)

    def _unassigned(self, lengths: Ints, counts: Ints) -> PythonFill | KernelFill:
        """Take ``counts`` sequences of each of these lengths as unassigned."""
        if self._compiled:
            return KernelFill(lengths, counts)
        as_list: list[int] = lengths.tolist()
        return PythonFill(as_list, counts.tolist(), [-length for length in as_list])

    def of_left(self, counts: Ints) -> RoundsFiller:
        """Return a filler of what is left of each length."""
        left = Sequences(self.sequences.lengths, counts)
        return RoundsFiller(self.classes, left, self.ranks, one_each=self.one_each)

    def full(self, rounds: int) -> tuple[FilledRounds, Ints]:
        """Fill rounds with about as many tokens as memory holds, each in the least time for that.

        Returns the rounds, and how many of each length are left.
        """
        counts = self.sequences.counts
        filled: list[_FilledRound] = []
        while counts.any() and len(filled) < rounds:
            filled.append(self._full_round(counts))
            counts = filled[-1].left
        return _rounds_of(filled), counts

    def _full_round(self, counts: Ints) -> _FilledRound:
        longest = int(np.argmax(counts > 0))
        best = self._round(counts, longest, self._full_ms[longest])
        lengths = self.sequences.lengths
        wanted = int(lengths @ (counts - best.left)) * (1 - SPARED)
        low, high = self._alone_ms[longest], best.time_ms
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            tried = self._round(counts, longest, middle)
            if int(lengths @ (counts - tried.left)) < wanted:
                low = middle
            else:
                best, high = tried, min(middle, tried.time_ms)
            if high - low < SPARED * high:
                break
        return best

    def _timed(
        self, fill: PythonFill | KernelFill, classes: Sequence[tuple[int, float]]
    ) -> _FilledRound:
        """Take what was filled as a round; ``classes`` with the overhead counted for each (ms)."""
        parts, slowest = [], 0.0
        placements: Sequence[_OfClass] = fill.placements()
        for (k, overhead), (placement, group_ms) in zip(classes, placements, strict=True):
            parts.append(_Part(k, placement))
            extra = 0.0 if self.one_each else self.classes[k].c - overhead
            slowest = max(slowest, max(group_ms) + extra)
        return _FilledRound(tuple(parts), slowest, np.asarray(fill.counts))

    def _round(self, counts: Ints, longest: int, target_ms: float) -> _FilledRound:
        """Fill one round, the largest groups first, each opened for a sequence that needs it.

        A sequence needs a degree where the next smaller one cannot hold it or not end by the
        target; the group is then topped up with what fits tokens and target.
        """
        fill = self._unassigned(self.sequences.lengths, counts)
        reach = [min(c.capacity, longest_alone(c, target_ms)) for c in self.classes]
        free, parts = self.ranks, []
        tokens = self._lengths[longest]
        for k, degree in enumerate(self.classes):
            below = max(reach[k + 1 :], default=0)
            number = free // degree.gpus
            if not number or tokens <= below or reach[k] <= 0:
                continue
            if below:
                number = self._needing(fill, k, reach[k], below, number, target_ms)
            if not number:
                continue
            overhead = self._fill_groups(fill, k, reach[k], below, number, target_ms)
            parts.append((k, overhead))
            free -= number * degree.gpus
            if not fill.left:
                break
            tokens = self._lengths[int(np.argmax(np.asarray(fill.counts) > 0))]
        return self._timed(fill, parts)

    def _needing(
        self,
        fill: PythonFill | KernelFill,
        k: int,
        reach: int,
        below: int,
        most: int,
        target_ms: float,
    ) -> int:
        """Count the groups of a class, up to ``most``, that sequences above ``below`` fill."""
        lengths = self.sequences.lengths
        above = int(np.searchsorted(-lengths, -below, side="left"))
        counts = np.asarray(fill.counts)[:above]
        trial = self._unassigned(lengths[:above], counts)
        self._fill_groups(trial, k, reach, 0, most, target_ms)
        ((_, group_ms),) = trial.placements()
        return sum(time > 0 for time in group_ms)

    def _fill_groups(
        self,
        fill: PythonFill | KernelFill,
        k: int,
        reach: int,
        below: int,
        number: int,
        target_ms: float,
    ) -> float:
        """Fill ``number`` groups of a class; the overhead that was counted for each (ms).

        For one micro-batch a group it is so large that no second one fits beside the first.
        """
        degree = self.classes[k]
        if self.one_each:
            degree = replace(degree, count=number)
            fill.fill_class(degree, reach, below, target_ms, target_ms, False)
            return degree.c
        work = (target_ms - degree.c) * _ROUND
        overhead = 2 * work + 1
        degree = replace(degree, count=number, c=overhead)
        fill.fill_class(degree, reach, below, overhead + work, overhead + work, False)
        return overhead
