"""Filling micro-steps to targets: groups of some degrees, each with one micro-batch.

A micro-step's groups run side by side and it lasts as long as the slowest of them.
``MicroStepsFiller.fill`` fills micro-steps one after another, each to the target that it is given;
``full`` fills them about as full as memory allows, each to the least target for that,
``fill_with_least_waste`` each to the target that wastes the least time. In a micro-step the largest
groups come first (``fill_micro_step``): each degree opens groups for the sequences that need it
(``_number_needed``) and tops them up with others (``fill_groups``), by the fill that packs
pipelines, compiled or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqplan.planner.lockstep.bounds.micro_step_bounds import Sequences
from seqplan.planner.lockstep.filling.filled_micro_steps import ClassGroups, FilledMicroSteps
from seqplan.planner.placement.fill import AnyPlacement, Fill, FillStarter, PackedPlacement
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass
from seqplan.planner.placement.ramps import ANY_NUMBER

HALVINGS = 6
"""Steps of the search for the least time in which a micro-step takes all tokens that it can."""

SPARED = 0.03
"""Share of those tokens that it may leave."""

LEAST_WASTE_TARGETS = 16
"""Targets of which the one is taken that wastes the least time."""


class Opening(NamedTuple):
    """``number`` groups of the class ``k`` to open in a micro-step of ``target_ms``.

    Those for sequences above ``above`` tokens first, then others; of up to ``reach`` tokens all.
    """

    k: int
    number: int
    above: int
    reach: int
    target_ms: float


Compiled = tuple[list[tuple[list[tuple[int, bytes, int]], float]], int]
"""Micro-steps of the native extension, each with its groups and time (ms), and how many sequences
are left."""

IN_TURN: Floats = np.array([])
"""Shares of no class: micro-steps are filled one after another."""


class Begun(NamedTuple):
    """Micro-steps that were filled first, and the sequences of each length that are left."""

    filled: FilledMicroSteps
    counts: Ints


class MicroStepsFiller:
    """Fills micro-steps one after another, each to a target, longest sequences first.

    ``classes``: the degrees, largest first, each with the ranks of a group as its ``gpus`` and
    with any ``count``. ``one_each``: a group runs its sequences one by one, each a micro-batch.
    ``stages``: that the micro-steps go through; classes and ranks are those of one.
    ``ValueError`` if a sequence fits none.

    ``area_ms``: all work, spread over the ranks; ``overhead_ms``: the least that a micro-step takes
    besides its sequences.
    """

    def __init__(
        self,
        classes: Sequence[PipelineClass],
        sequences: Sequences,
        ranks: int,
        *,
        one_each: bool = False,
        stages: int = 1,
        tables: FillTables | None = None,
    ) -> None:
        longest = int(sequences.lengths[0])
        if longest > max(c.capacity for c in classes):
            raise ValueError(
                f"a sequence of {longest} tokens fits no group"
                ". Use larger groups or a shorter context"
            )
        if one_each:
            classes = [replace(c, unit=c.capacity) for c in classes]
        self.classes = tuple(classes)
        self.one_each = one_each
        self.ranks = ranks
        self.stages = stages
        self.sequences = sequences
        self._lengths: list[int] = sequences.lengths.tolist()
        self._negated = [-length for length in self._lengths]
        self._tables = FillTables(sequences.lengths) if tables is None else tables
        self.costs = [self._tables.find_costs(k) for k in self.classes]
        self._starter = FillStarter(self._tables, classes)
        holds = np.stack([sequences.lengths <= c.capacity for c in classes])
        work = np.stack([c.work_ms(sequences.lengths) for c in classes])
        with_overhead = work + np.array([[c.c] for c in classes])
        sizes = np.array([[float(c.gpus)] for c in classes])
        areas = sizes * (with_overhead if one_each else work)
        self._areas_ms = _least(areas, holds) / ranks
        self.area_ms = float(self._areas_ms @ sequences.counts)
        self._alone = _least(with_overhead, holds)
        self._alone_ms: list[float] = self._alone.tolist()
        self.overhead_ms = 0.0 if one_each else min(c.c for c in classes)
        smallest = (len(classes) - 1 - np.argmax(holds[::-1], axis=0)).tolist()
        self._full_ms = [
            classes[k].capacity * (classes[k].a * length + classes[k].b) + classes[k].c
            for k, length in zip(smallest, self._lengths, strict=True)
        ]

    def of_left(self, counts: Ints) -> MicroStepsFiller:
        """Return a filler of the rest of each length."""
        left = Sequences(self.sequences.lengths, counts)
        return MicroStepsFiller(
            self.classes,
            left,
            self.ranks,
            one_each=self.one_each,
            stages=self.stages,
            tables=self._tables,
        )

    def fill(
        self, targets_ms: Sequence[float], begun: Begun | None = None
    ) -> FilledMicroSteps | None:
        """Fill micro-steps with these targets, each raised to the longest sequence that is left.

        After those ``begun``, if any. None if sequences are left.
        """
        counts = self.sequences.counts if begun is None else begun.counts
        after = self._fill_in_turn(counts, targets_ms, only_whole=True)
        if after is None:
            return None
        return after.filled if begun is None else begun.filled + after.filled

    def begin(self, targets_ms: Sequence[float], begun: Begun | None = None) -> Begun:
        """Fill micro-steps with these targets, before others that ``fill`` adds."""
        counts = self.sequences.counts if begun is None else begun.counts
        after = self._fill_in_turn(counts, targets_ms)
        assert after is not None
        return after if begun is None else Begun(begun.filled + after.filled, after.counts)

    def _fill_in_turn(
        self, counts: Ints, targets_ms: Sequence[float], *, only_whole: bool = False
    ) -> Begun | None:
        """Fill micro-steps while sequences are left of ``counts``.

        None if some are left at the end and ``only_whole``.
        """
        if self._compiled is not None:
            return self._fill_compiled(counts, targets_ms, only_whole=only_whole)
        fill = self._starter.take_unassigned(counts)
        micro_steps = []
        longest = 0
        for target in targets_ms:
            if not fill.left:
                break
            longest = find_first_left(fill, longest)
            micro_steps.append(
                self.fill_micro_step(fill, longest, max(target, self._alone_ms[longest]))
            )
        if fill.left and only_whole:
            return None
        return Begun(self._make_micro_steps(fill, micro_steps), np.asarray(fill.counts))

    @cached_property
    def _compiled(self) -> partial[Compiled] | None:
        """Function of the native extension that fills micro-steps; None if Python does."""
        if not self._starter.compiled or type(self).fill_micro_step is not (
            MicroStepsFiller.fill_micro_step
        ):
            return None
        from seqplan.planner.placement import fill_kernel

        degrees = zip(self.costs, self.classes, strict=True)
        classes = tuple((costs.compiled, degree.gpus) for costs, degree in degrees)
        return partial(fill_kernel.fill_micro_steps, classes, self.ranks)

    def _fill_compiled(
        self,
        counts: Ints,
        targets_ms: Sequence[float],
        *,
        only_whole: bool,
        shares: Floats = IN_TURN,
    ) -> Begun | None:
        assert self._compiled is not None
        rest = counts.copy()
        targets = np.array(targets_ms, dtype=np.float64)
        most = ANY_NUMBER if self.one_each else 1
        micro_steps, left = self._compiled(rest, targets, self._alone, most, shares)
        if left and only_whole:
            return None
        groups = tuple(
            tuple([ClassGroups(k, PackedPlacement(packed, n)) for k, packed, n in by_class])
            for by_class, _ in micro_steps
        )
        times = tuple([time_ms for _, time_ms in micro_steps])
        return Begun(FilledMicroSteps(groups, times, self.stages), rest)

    def full(self, micro_steps: int) -> tuple[FilledMicroSteps, Ints]:
        """Fill micro-steps with about as many tokens as memory holds, in the least time.

        Returns the micro-steps, and how many of each length are left.
        """
        counts = self.sequences.counts
        filled = FilledMicroSteps((), (), self.stages)
        while counts.any() and len(filled.times_ms) < micro_steps:
            full_micro_step, counts = self._full_micro_step(counts)
            filled += full_micro_step
        return filled, counts

    def fill_with_least_waste(self) -> FilledMicroSteps | None:
        """Fill micro-steps one after another, each to the target that wastes least time.

        Of ``LEAST_WASTE_TARGETS``, from the longest sequence's time up: the micro-step that is
        shortest for the least GPU-time of the sequences that it takes. None if a sequence fits no
        group of so few ranks.
        """
        counts = self.sequences.counts
        filled = FilledMicroSteps((), (), self.stages)
        while counts.any():
            longest = int(np.argmax(counts > 0))
            first = self._alone_ms[longest]
            last = max(first, self._full_ms[longest])
            best_share = 0.0
            for target in np.geomspace(first, last, LEAST_WASTE_TARGETS).tolist():
                one_micro_step, rest = self._micro_step_of(counts, target)
                least_ms = float(self._areas_ms @ (counts - rest))
                if least_ms > best_share * one_micro_step.times_ms[0]:
                    best_share = least_ms / one_micro_step.times_ms[0]
                    least_waste, left = one_micro_step, rest
            if not best_share:
                return None
            filled, counts = filled + least_waste, left
        return filled

    def _full_micro_step(self, counts: Ints) -> tuple[FilledMicroSteps, Ints]:
        """Find the least target at which a micro-step takes nearly all tokens that it can."""
        longest = int(np.argmax(counts > 0))
        best, left = self._micro_step_of(counts, self._full_ms[longest])
        lengths = self.sequences.lengths
        enough = int(lengths @ (counts - left)) * (1 - SPARED)
        low, high = self._alone_ms[longest], best.total_ms
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            shorter, left_by_it = self._micro_step_of(counts, middle)
            if int(lengths @ (counts - left_by_it)) < enough:
                low = middle
            else:
                best, left, high = shorter, left_by_it, min(middle, shorter.total_ms)
            if high - low < SPARED * high:
                break
        return best, left

    def _micro_step_of(self, counts: Ints, target_ms: float) -> tuple[FilledMicroSteps, Ints]:
        """Fill one micro-step from ``counts`` of each length; with the counts that remain."""
        begun = self._fill_in_turn(counts, [target_ms])
        assert begun is not None
        return begun

    def _make_micro_steps(
        self, fill: Fill, micro_steps: Sequence[Sequence[int]]
    ) -> FilledMicroSteps:
        """Take the filled placements as micro-steps, given each one's classes in filling order."""
        in_order: Sequence[tuple[AnyPlacement, tuple[float, ...]]] = fill.placements()
        placements = iter(in_order)
        groups, times = [], []
        for filled_classes in micro_steps:
            by_class, slowest = [], 0.0
            for k in filled_classes:
                placement, group_ms = next(placements)
                by_class.append(ClassGroups(k, placement))
                slowest = max(slowest, *group_ms)
            groups.append(tuple(by_class))
            times.append(slowest)
        return FilledMicroSteps(tuple(groups), tuple(times), self.stages)

    def fill_micro_step(self, fill: Fill, longest: int, target_ms: float) -> list[int]:
        """Fill one micro-step, the largest groups first, each opened for a sequence that needs it.

        A sequence needs a degree if the next smaller one cannot hold it or not end by the
        target; the group is then topped up with any that fit both. ``longest``: the place
        of the longest that is left. ``fill_kernel.c`` does the same, operation by operation.
        """
        reach = [costs.longest_alone(target_ms) for costs in self.costs]
        free, filled_classes = self.ranks, []
        for k, degree in enumerate(self.classes):
            if number := self._fill_degree(fill, k, free, longest, reach, target_ms):
                filled_classes.append(k)
                free -= number * degree.gpus
                if not fill.left:
                    break
                longest = find_first_left(fill, longest)
        return filled_classes

    def _fill_degree(
        self,
        fill: Fill,
        k: int,
        free: int,
        longest: int,
        reach: Sequence[int],
        target_ms: float,
        share: float = 1.0,
    ) -> int:
        """Open groups of a class on free ranks and fill them; returns how many.

        ``share``: of the groups that sequences need.
        """
        below = max(reach[k + 1 :], default=0)
        number = free // self.classes[k].gpus
        if not number or self._lengths[longest] <= below or reach[k] <= 0:
            return 0
        opening = Opening(k, number, below, reach[k], target_ms)
        if below:
            number = ceil(self._number_needed(fill, opening) * share)
            opening = opening._replace(number=number)
        if number:
            self.fill_groups(fill, opening)
        return number

    def _number_needed(self, fill: Fill, opening: Opening) -> int:
        """Count the groups that sequences above ``opening.above`` fill, up to its number."""
        longer = bisect_left(self._negated, -opening.above)
        counts = np.array(fill.counts, dtype=np.int64)
        counts[longer:] = 0
        trial = self._starter.take_unassigned(counts)
        return self.fill_groups(trial, opening._replace(above=0))

    def fill_groups(self, fill: Fill, opening: Opening) -> int:
        """Fill the groups of a class, with one micro-batch each; how many have sequences.

        ``one_each``: a micro-batch for each sequence.
        """
        until = opening.target_ms
        return fill.fill_class(
            self.costs[opening.k],
            opening.number,
            opening.reach,
            opening.above,
            until,
            most=ANY_NUMBER if self.one_each else 1,
        )


def find_first_left(fill: Fill, start: int) -> int:
    """Return the place of the longest length, from ``start`` on, that is left."""
    if fill.counts[start]:
        return start
    return start + int((np.asarray(fill.counts[start:]) > 0).argmax())


def _least(times_ms: Floats, holds: npt.NDArray[np.bool_]) -> Floats:
    """Return each sequence's least time over the degrees (first axis) that hold it."""
    least: Floats = np.where(holds, times_ms, np.inf).min(axis=0)
    return least
