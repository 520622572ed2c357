"""Filling rounds to targets: in each, groups of one or several degrees, each with one micro-batch.

A round's groups run side by side and it lasts as long as the slowest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.class_fill import PythonFill
from seqplan.planner.placement.fleet import (
    Bin,
    ClassPlacement,
    Ints,
    PipelineClass,
    longest_alone,
)
from seqplan.planner.placement.kernel import KernelFill, PackedPlacement, kernel_fills
from seqplan.planner.rounds.busy_ranks import Group
from seqplan.planner.rounds.round_bounds import in_stages_ms

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


_OfClass = tuple[ClassPlacement | PackedPlacement, tuple[float, ...]]
"""What groups of a class were given, and each group's time with the overhead that was counted."""


@dataclass(frozen=True)
class _Part:
    """What one class of a round's groups was given, still packed perhaps."""

    class_index: int
    placement: ClassPlacement | PackedPlacement


@dataclass(frozen=True)
class FilledRounds:
    """Rounds filled to targets; ``times_ms``: of each round, at one of ``stages`` stages."""

    parts: tuple[tuple[_Part, ...], ...]
    times_ms: tuple[float, ...]
    stages: int = 1

    @property
    def total_ms(self) -> float:
        """Return what the rounds take, one after another through the stages."""
        return in_stages_ms(self.times_ms, self.stages)

    @classmethod
    def of_bins(cls, rounds: Sequence[Sequence[Bin]], times_ms: Sequence[float]) -> FilledRounds:
        """Make rounds of one degree from their micro-batches."""
        parts = tuple((_Part(0, tuple((micro,) for micro in of_round)),) for of_round in rounds)
        return cls(parts, tuple(times_ms))

    def of_class(self, k: int) -> FilledRounds:
        """Return these rounds of one degree as those of the class ``k`` of several."""
        parts = tuple(tuple(_Part(k, p.placement) for p in of_round) for of_round in self.parts)
        return replace(self, parts=parts)

    def __add__(self, after: FilledRounds) -> FilledRounds:
        """Return these rounds and others after them."""
        times = self.times_ms + after.times_ms
        return replace(self, parts=self.parts + after.parts, times_ms=times)

    def bins(self) -> list[list[tuple[int, Bin]]]:
        """List the groups with sequences, round by round: (index of the class, what it has)."""
        return [[group for part in of_round for group in _bins(part)] for of_round in self.parts]

    def groups(self, batch: Batch) -> list[list[Group]]:
        """List the groups of each round with their sequences' positions in the batch."""
        pools = [iter(positions) for positions in batch.positions]
        return [
            [(k, tuple(next(pools[i]) for i, n in micro for _ in range(n))) for k, micro in groups]
            for groups in self.bins()
            if groups
        ]


def _bins(part: _Part) -> list[tuple[int, Bin]]:
    placement = part.placement
    unpacked = placement.unpack() if isinstance(placement, PackedPlacement) else placement
    return [
        (part.class_index, [entry for micro in pipeline for entry in micro])
        for pipeline in unpacked
        if pipeline
    ]


class RoundsFiller:
    """Fills rounds one after another, each to a target: longest sequences first, then what fits.

    ``classes``: the degrees, largest first, each with the ranks of a group as its ``gpus`` and
    with any ``count``. ``one_each``: a group runs its sequences one by one, each a micro-batch.
    ``stages``: that the rounds go through; classes and ranks are those of one.
    ``ValueError`` where a sequence fits none.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        sequences: Sequences,
        ranks: int,
        *,
        one_each: bool = False,
        stages: int = 1,
    ) -> None:
        longest = int(sequences.lengths[0])
        if longest > max(c.capacity for c in classes):
            raise ValueError(f"a sequence of {longest} tokens fits no group")
        if one_each:
            classes = [replace(c, unit=c.capacity) for c in classes]
        self.classes = tuple(classes)
        self.one_each = one_each
        self.ranks = ranks
        self.stages = stages
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
        fill = self._unassigned(self.sequences.lengths, self.sequences.counts)
        of_rounds = []
        for target in targets_ms:
            if not fill.left:
                break
            longest = int((np.asarray(fill.counts) > 0).argmax())
            of_rounds.append(self._fill_round(fill, longest, max(target, self._alone_ms[longest])))
        return None if fill.left else self._rounds(fill, of_rounds)

    def _unassigned(self, lengths: Ints, counts: Ints) -> PythonFill | KernelFill:
        """Take ``counts`` sequences of each of these lengths as unassigned."""
        if self._compiled:
            return KernelFill(lengths, counts)
        as_list: list[int] = lengths.tolist()
        return PythonFill(as_list, counts.tolist(), [-length for length in as_list])

    def of_left(self, counts: Ints) -> RoundsFiller:
        """Return a filler of what is left of each length."""
        left = Sequences(self.sequences.lengths, counts)
        return RoundsFiller(
            self.classes, left, self.ranks, one_each=self.one_each, stages=self.stages
        )

    def full(self, rounds: int) -> tuple[FilledRounds, Ints]:
        """Fill rounds with about as many tokens as memory holds, each in the least time for that.

        Returns the rounds, and how many of each length are left.
        """
        counts = self.sequences.counts
        filled = FilledRounds((), (), self.stages)
        while counts.any() and len(filled.times_ms) < rounds:
            one, counts = self._full_round(counts)
            filled += one
        return filled, counts

    def _full_round(self, counts: Ints) -> tuple[FilledRounds, Ints]:
        longest = int(np.argmax(counts > 0))
        best, left = self._one_round(counts, longest, self._full_ms[longest])
        lengths = self.sequences.lengths
        wanted = int(lengths @ (counts - left)) * (1 - SPARED)
        low, high = self._alone_ms[longest], best.total_ms
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            tried, after = self._one_round(counts, longest, middle)
            if int(lengths @ (counts - after)) < wanted:
                low = middle
            else:
                best, left, high = tried, after, min(middle, tried.total_ms)
            if high - low < SPARED * high:
                break
        return best, left

    def _one_round(self, counts: Ints, longest: int, target_ms: float) -> tuple[FilledRounds, Ints]:
        """Fill one round from what is left of each length; and what is left then."""
        fill = self._unassigned(self.sequences.lengths, counts)
        parts = self._fill_round(fill, longest, target_ms)
        return self._rounds(fill, [parts]), np.asarray(fill.counts)

    def _rounds(
        self, fill: PythonFill | KernelFill, of_rounds: Sequence[Sequence[tuple[int, float]]]
    ) -> FilledRounds:
        """Take what was filled as rounds: of each its classes, with the overhead counted (ms)."""
        placements: Sequence[_OfClass] = fill.placements()
        filled = iter(placements)
        parts, times = [], []
        for of_round in of_rounds:
            of_parts, slowest = [], 0.0
            for k, overhead in of_round:
                placement, group_ms = next(filled)
                of_parts.append(_Part(k, placement))
                extra = 0.0 if self.one_each else self.classes[k].c - overhead
                slowest = max(slowest, max(group_ms) + extra)
            parts.append(tuple(of_parts))
            times.append(slowest)
        return FilledRounds(tuple(parts), tuple(times), self.stages)

    def _fill_round(
        self, fill: PythonFill | KernelFill, longest: int, target_ms: float
    ) -> list[tuple[int, float]]:
        """Fill one round, the largest groups first, each opened for a sequence that needs it.

        A sequence needs a degree where the next smaller one cannot hold it or not end by the
        target; the group is then topped up with what fits tokens and target. ``longest``: the place
        of the longest that is left. Returns the classes, with the overhead counted for each (ms).
        """
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
            if not fill.left or k == len(reach) - 1:
                break
            tokens = self._lengths[int((np.asarray(fill.counts) > 0).argmax())]
        return parts

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
        d = self.classes[k]
        if self.one_each:
            groups = PipelineClass(1, d.a, d.b, d.c, d.capacity, d.unit, number, d.gpus)
            fill.fill_class(groups, reach, below, target_ms, target_ms, False)
            return d.c
        work = (target_ms - d.c) * _ROUND
        overhead = 2 * work + 1
        groups = PipelineClass(1, d.a, d.b, overhead, d.capacity, d.unit, number, d.gpus)
        fill.fill_class(groups, reach, below, overhead + work, overhead + work, False)
        return overhead
