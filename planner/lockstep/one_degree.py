"""Micro-steps of one micro-batch a rank: each lasts as long as its slowest rank (FSDP, ZeRO-3).

The least Σ over micro-steps of the slowest micro-batch, every micro-batch within its tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from math import ceil, inf

import numpy as np

from seqplan.planner.lockstep.busy_ranks import assign_longest_first
from seqplan.planner.lockstep.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filler import MicroStepsFiller
from seqplan.planner.lockstep.micro_step_bounds import (
    Sequences,
    fewest_of_one_degree,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.search import (
    TRIED_FILLS,
    SearchSettings,
    Start,
    common_target,
    improve_targets,
    search,
)
from seqplan.planner.placement.fleet import Bin, PipelineClass

SETTINGS = SearchSettings(extra=2, improved=0, fills=TRIED_FILLS)
"""Starts come improved: whether light micro-steps are tried depends on how near they are."""

LOOSE, FEW = 1e-2, 2_000
"""Longest-first assignment is tried as well above this gap, with up to so many sequences; with up
to a quarter of them above ``CLOSED`` (measured: 2 µs a sequence and assignment)."""

FEW_EXTRA, VERY_FEW = 12, 100
"""Numbers of micro-steps tried beyond the fewest with so many sequences at most, which takes
milliseconds: pairs of like sequences can be best (measured: 1.4 % on 17 sequences)."""

CLOSED = 1e-6
"""Relative gap below which nothing more is tried."""


def plan_one_degree(
    micro_batch: PipelineClass,
    sequences: Sequences,
    ranks: int,
    multiple: int = 1,
) -> tuple[FilledMicroSteps, float]:
    """Find micro-steps for all sequences, and a lower bound over all plans (ms).

    ``multiple``: of which the number of micro-steps is, if sequences suffice for a micro-batch on
    each rank in each of them: the bound is then over plans in which none is empty. Else micro-steps
    are as many as is best, micro-batches may be empty, and the bound is over all plans.
    ``ValueError`` if a sequence exceeds a micro-batch.
    """
    fewest = fewest_of_one_degree(micro_batch, sequences, ranks)
    number = int(sequences.counts.sum())
    settings = SETTINGS if number > VERY_FEW else replace(SETTINGS, extra=FEW_EXTRA)
    first = ceil(fewest / multiple) * multiple
    for none_empty in (True, False) if multiple > 1 else (False,):
        candidates, bound_ms = search(
            [OneDegreeFiller(micro_batch, sequences, ranks, none_empty=none_empty)],
            range(first, number // ranks + 1, multiple) if none_empty else count(fewest),
            partial(one_degree_bound_ms, micro_batch, sequences, ranks, none_empty=none_empty),
            settings,
        )
        if candidates:
            return candidates[0], min(bound_ms, candidates[0].total_ms)
    raise AssertionError("one sequence per micro-batch always fits")


class OneDegreeFiller:
    """Starts with a common target and longest first, or with *light* micro-steps.

    ``none_empty``: with a sequence on each rank in each micro-step, and light micro-steps: of one
    sequence on each rank, of the shortest there are. Long sequences bind the others, so that all
    work is done next to them and light micro-steps cost little more than themselves.
    """

    def __init__(
        self,
        micro_batch: PipelineClass,
        sequences: Sequences,
        ranks: int,
        *,
        none_empty: bool = False,
    ) -> None:
        self._micro_batch, self._sequences, self._ranks = micro_batch, sequences, ranks
        self._none_empty = none_empty
        self._number = int(sequences.counts.sum())
        self._found: list[FilledMicroSteps] = []
        self._best_ms = inf

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[FilledMicroSteps]]:
        """List micro-steps that are better than the best, improved already; see ``Starter``."""
        self._found, self._best_ms = [], best_ms
        if self._none_empty:
            self._try_light(number, bound_ms)
        else:
            self._try(self._sequences, number, bound_ms)
        return [Start(filled) for filled in self._found]

    def _try_light(self, number: int, bound_ms: float) -> None:
        """Try each number of light micro-steps that may be the best, by ascending bound."""
        options = []
        heavy, light_micro_steps = self._sequences, FilledMicroSteps((), ())
        for light in range(number):
            if fewest_of_one_degree(self._micro_batch, heavy, self._ranks) <= number - light:
                heavy_ms = self._bound_ms(heavy, number - light, none_empty=True)
                options.append(
                    (heavy_ms + light_micro_steps.total_ms, light, heavy, light_micro_steps)
                )
            if light < number - 1:
                heavy, one_more = self._take_light_micro_step(heavy)
                light_micro_steps += one_more
        for least_ms, light, heavy, light_micro_steps in sorted(options, key=lambda o: o[:2]):
            if max(least_ms, bound_ms) >= self._best_ms:
                return
            self._try(heavy, number - light, bound_ms, light_micro_steps)

    def _take_light_micro_step(self, sequences: Sequences) -> tuple[Sequences, FilledMicroSteps]:
        """Put the shortest sequences into one micro-step, one a rank, and return the others."""
        left, of_micro_step = sequences.counts.copy(), list[Bin]()
        places = iter(np.flatnonzero(left)[::-1].tolist())
        while len(of_micro_step) < self._ranks:
            place = next(places)
            taken = min(int(left[place]), self._ranks - len(of_micro_step))
            of_micro_step += [[(place, 1)] for _ in range(taken)]
            left[place] -= taken
        longest = int(sequences.lengths[place])
        work = longest * (self._micro_batch.a * longest + self._micro_batch.b)
        light = FilledMicroSteps.from_bins([of_micro_step], [work + self._micro_batch.c])
        return Sequences(sequences.lengths, left), light

    def _try(
        self,
        sequences: Sequences,
        number: int,
        bound_ms: float,
        light: FilledMicroSteps | None = None,
    ) -> None:
        """Fill so many micro-steps with ``sequences``, next to light micro-steps with all others.

        By the least common target that works, each micro-step lasting at least as long as the
        longest sequence that is left, and then by targets of single micro-steps that are changed
        while the sum falls; and by assigning sequences one by one. Fewer micro-steps than wanted
        count only without light ones: with them a smaller number is tried anyway.
        """
        light_ms = 0.0 if light is None else light.total_ms
        filler = MicroStepsFiller([self._micro_batch], sequences, self._ranks)
        filled = common_target(filler, number, bound_ms - light_ms)
        if filled is not None and (light is None or len(filled.times_ms) == number):
            if filled.total_ms + light_ms < self._best_ms:
                filled = improve_targets(filler, filled, bound_ms - light_ms)
            self._keep(filled, light, number)
        many = self._number > (FEW if self._best_ms > bound_ms * (1 + LOOSE) else FEW // 4)
        if not many and self._best_ms > bound_ms * (1 + CLOSED):
            even = _assign_longest_first(self._micro_batch, sequences, self._ranks, number)
            if even is not None:
                self._keep(even, light, number)

    def _keep(self, filled: FilledMicroSteps, light: FilledMicroSteps | None, number: int) -> None:
        """Keep micro-steps that are better than the best, if they are as many as wanted.

        Next to light ones, only if they have a sequence for each rank.
        """
        if light is not None:
            if len(filled.times_ms) != number:
                return
            filled = self._with_sequences_for_all(filled) + light
        if filled.total_ms < self._best_ms:
            self._found.append(filled)
            self._best_ms = filled.total_ms

    def _with_sequences_for_all(self, filled: FilledMicroSteps) -> FilledMicroSteps:
        """Move the shortest sequences to micro-steps with fewer of them than ranks."""
        micro_steps = [
            [dict(micro) for _, micro in of_micro_step] for of_micro_step in filled.bins()
        ]
        numbers = [
            sum(sum(micro.values()) for micro in of_micro_step) for of_micro_step in micro_steps
        ]
        if min(numbers) >= self._ranks:
            return filled
        lengths, times = self._sequences.lengths.tolist(), list(filled.times_ms)
        spare = sorted(
            (-i, r, place)
            for r, of_micro_step in enumerate(micro_steps)
            for place, micro in enumerate(of_micro_step)
            for i in micro
        )
        for r, of_micro_step in enumerate(micro_steps):
            while numbers[r] < self._ranks:
                shortest, giver, place = next(
                    (-i, giver, place)
                    for i, giver, place in spare
                    if numbers[giver] > self._ranks
                    and micro_steps[giver][place].get(-i, 0)
                    and sum(micro_steps[giver][place].values()) > 1
                )
                micro_steps[giver][place][shortest] -= 1
                of_micro_step.append({shortest: 1})
                numbers[giver] -= 1
                numbers[r] += 1
                work = lengths[shortest] * (
                    self._micro_batch.a * lengths[shortest] + self._micro_batch.b
                )
                times[r] = max(times[r], work + self._micro_batch.c)
        return FilledMicroSteps.from_bins(
            [
                [[(i, n) for i, n in micro.items() if n] for micro in of_micro_step]
                for of_micro_step in micro_steps
            ],
            times,
        )

    def _bound_ms(
        self, sequences: Sequences, micro_steps: int, *, none_empty: bool = False
    ) -> float:
        return one_degree_bound_ms(
            self._micro_batch, sequences, self._ranks, micro_steps, none_empty=none_empty
        )


def _assign_longest_first(
    micro_batch: PipelineClass, sequences: Sequences, ranks: int, micro_steps: int
) -> FilledMicroSteps | None:
    """Assign each sequence, longest first, to the least loaded micro-batch of all with room.

    Micro-batches are then assigned to micro-steps by their time, the slowest together. None if one
    of the sequences finds no room.
    """
    lengths = sequences.lengths.tolist()
    items = (
        (
            i,
            lengths[i] * (micro_batch.a * lengths[i] + micro_batch.b),
            micro_batch.pad(lengths[i]),
        )
        for i, n in enumerate(sequences.counts.tolist())
        for _ in range(n)
    )
    assigned = assign_longest_first(items, micro_steps * ranks, micro_batch.capacity)
    if assigned is None:
        return None
    slowest_first = sorted(range(len(assigned)), key=lambda p: (assigned[p][0], p), reverse=True)
    ordered = [(load, Counter(part)) for load, part in (assigned[p] for p in slowest_first) if part]
    together = [ordered[first : first + ranks] for first in range(0, len(ordered), ranks)]
    return FilledMicroSteps.from_bins(
        [[list(micro.items()) for _, micro in of_micro_step] for of_micro_step in together],
        [of_micro_step[0][0] + micro_batch.c for of_micro_step in together],
    )
