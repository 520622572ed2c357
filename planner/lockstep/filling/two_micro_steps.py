"""Two micro-steps filled at once, so that long sequences are divided between them.

Filled in turn, the first micro-step takes all long sequences, in large groups that short ones have
to fill up. Here the largest groups of both come first, then the next smaller ones: of the groups
that sequences need of a class, the first micro-step opens all, some or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import prod

import numpy as np

from seqplan.planner.lockstep.filling.filled_micro_steps import ClassGroups, FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller, find_first_left
from seqplan.planner.placement.fill import AnyPlacement
from seqplan.planner.placement.fleet import Floats

PARTS = 4
"""Parts at most that the groups of a class are counted in."""

MOST_DIVISIONS = 128
"""Divisions tried at most; parts become fewer with many classes."""

LEAST, MOST, EVEN = 0.36, 0.64, 24
"""The first micro-step's share of both, and how many such shares are tried."""

LONGEST = 24
"""Distinct lengths, the longest first, whose times alone are tried for the first micro-step."""

GAIN, TOLERANCE = 3e-4, 1e-3
"""Share of the time that a division has to gain, and relative width at which a target is found.
Measured on 64 steps of 32B on 64 GPUs: 0.36 % shorter in the mean, at most 2.0 %; with halves in
place of ``PARTS`` 0.31 %; 0.41 % with 64 ``EVEN`` shares, for twice the CPU."""


class TwoMicroSteps(MicroStepsFiller):
    """Fills two micro-steps at once; arguments as ``MicroStepsFiller``."""

    def search(self, known_ms: float) -> FilledMicroSteps | None:
        """Find two micro-steps that take less than ``known_ms``; None if none is found."""
        best, best_ms = None, known_ms
        divisions = self._list_divisions(known_ms / 2)
        for target_ms in self._list_targets(known_ms):
            for shares in divisions:
                low_ms = max(0.9 * best_ms - target_ms, self.overhead_ms)
                high_ms = best_ms * (1 - GAIN) - target_ms
                if high_ms <= low_ms:
                    continue
                filled = self.fill_both((target_ms, high_ms), shares)
                while filled is not None:
                    if filled.total_ms < best_ms:
                        best, best_ms = filled, filled.total_ms
                    high_ms = min(high_ms, best_ms - target_ms)
                    filled = None
                    while filled is None and high_ms - low_ms > TOLERANCE * high_ms:
                        middle_ms = (low_ms + high_ms) / 2
                        filled = self.fill_both((target_ms, middle_ms), shares)
                        if filled is None:
                            low_ms = middle_ms
                        else:
                            high_ms = middle_ms
        return best

    def fill_both(self, targets_ms: tuple[float, float], shares: Floats) -> FilledMicroSteps | None:
        """Fill both up to their targets; None if sequences are left.

        ``shares``: by class, of the groups needed for long sequences, those in the first.
        """
        if self._compiled is not None:
            counts = self.sequences.counts
            begun = self._fill_compiled(counts, targets_ms, only_whole=True, shares=shares)
            return None if begun is None else begun.filled
        fill = self._starter.take_unassigned(self.sequences.counts)
        reach = [[costs.longest_alone(target) for costs in self.costs] for target in targets_ms]
        free, order, longest = [self.ranks, self.ranks], list[tuple[int, int]](), 0
        for k, r in np.ndindex(len(self.classes), 2):
            if not fill.left:
                break
            longest = find_first_left(fill, longest)
            if self._lengths[longest] > max(*reach[0][k:], *reach[1][k:]):
                break
            share = 1.0 if r else float(shares[k])
            number = self._fill_degree(fill, k, free[r], longest, reach[r], targets_ms[r], share)
            if number:
                free[r] -= number * self.classes[k].gpus
                order.append((r, k))
        if fill.left:
            return None
        groups: tuple[list[ClassGroups], list[ClassGroups]] = ([], [])
        times = [0.0, 0.0]
        filled: Sequence[tuple[AnyPlacement, tuple[float, ...]]] = fill.placements()
        for (r, k), (placement, group_ms) in zip(order, filled, strict=True):
            groups[r].append(ClassGroups(k, placement))
            times[r] = max(times[r], *group_ms)
        return FilledMicroSteps(tuple(map(tuple, groups)), tuple(times), self.stages)

    def _list_divisions(self, target_ms: float) -> list[Floats]:
        """List shares by class; only classes that sequences need by the target are divided."""
        reach = [costs.longest_alone(target_ms) for costs in self.costs]
        lengths, counts = self.sequences.lengths, self.sequences.counts
        needed = []
        for k, longest in enumerate(reach[:-1]):
            needing = (lengths > max(reach[k + 1 :])) & (lengths <= longest)
            needed.append(int(counts[needing].sum()))
        for most in (PARTS, 2, 1):
            parts = [min(most, number) for number in needed]
            if prod(n + 1 for n in parts) <= MOST_DIVISIONS:
                break
        divisions = islice(np.ndindex(*[n + 1 for n in parts]), MOST_DIVISIONS)
        most_parts = np.maximum(parts, 1)
        return [np.append(np.array(of_first) / most_parts, 0.0) for of_first in divisions]

    def _list_targets(self, known_ms: float) -> list[float]:
        """List targets of the first micro-step: times of long sequences alone, and even ones."""
        lengths = self.sequences.lengths[:LONGEST]
        alone = {
            time_ms
            for k in self.classes
            for time_ms in (k.work_ms(lengths) + k.c)[k.padded(lengths) <= k.capacity].tolist()
        }
        least, most = LEAST * known_ms, MOST * known_ms
        even = np.linspace(least, most, EVEN).tolist()
        return sorted([*even, *(ms for ms in alone if least < ms < most)])
