"""Micro-steps of one micro-batch a rank: each lasts as long as its slowest rank (FSDP, ZeRO-3).

The least Σ over micro-steps of the slowest micro-batch, every micro-batch within its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import ceil

import numpy as np

from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    fewest_of_one_degree,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller
from seqplan.planner.lockstep.filling.longest_first import LongestFirst
from seqplan.planner.lockstep.filling.rank_speeds import SpeedsFiller, speeds_bound_ms
from seqplan.planner.lockstep.filling.search import (
    Improve,
    SearchSettings,
    Start,
    Starter,
    TargetFiller,
    search,
)
from seqplan.planner.placement.fleet import Bin, PipelineClass

SETTINGS = SearchSettings(extra=2, improved=2, fills=40)
"""Measured on 198 batches of 256 to 4,096 sequences on 8 to 128 ranks: ``extra`` 1 slows none by
more than 0.01 %, ``improved`` 1 one by 0.07 %; ``deepened`` 1 gains 0.001 % in the mean and takes
1.15 times the CPU."""

FEW_EXTRA, VERY_FEW = 12, 100
"""Numbers of micro-steps tried beyond the fewest with so many sequences at most, which takes
milliseconds: pairs of like sequences can be best (measured: 1.4 % on 17 sequences)."""


def plan_one_degree(
    classes: Sequence[PipelineClass],
    sequences: Sequences,
    multiple: int = 1,
    *,
    speed: float | None = None,
) -> tuple[FilledMicroSteps, float]:
    """Find micro-steps for all sequences, and a lower bound over all plans (ms).

    ``classes``: the ranks of each speed, the fastest first, as many as their ``count``; all hold as
    many tokens. ``speed``: of all ranks, in fastest ones, if they differ. ``multiple``: of which
    the number of micro-steps is, if sequences suffice for a micro-batch on each rank in each of
    them: on equal ranks none is empty then, and the bound is over such plans. Else micro-steps are
    as many as is best, micro-batches may be empty, and the bound is over all plans. ``ValueError``
    if a sequence exceeds a micro-batch.
    """
    ranks = sum(k.count for k in classes)
    fewest = fewest_of_one_degree(classes[0], sequences, ranks)
    number = int(sequences.counts.sum())
    settings = SETTINGS if number > VERY_FEW else replace(SETTINGS, extra=FEW_EXTRA)
    if speed is None:
        bound = partial(one_degree_bound_ms, classes[0], sequences, ranks)
        filler = MicroStepsFiller(classes, sequences, ranks)
    else:
        bound = partial(speeds_bound_ms, classes, sequences, ranks, speed)
        filler = SpeedsFiller(classes, sequences, speed)
    any_ranks: list[Starter[FilledMicroSteps]] = [
        TargetFiller(filler),
        LongestFirst(classes, sequences),
    ]
    if multiple > 1:
        first = ceil(fewest / multiple) * multiple
        numbers = range(first, number // ranks + 1, multiple)
        if speed is None:
            all_ranks = [AllRanks(classes[0], sequences, ranks)]
            candidates, bound_ms = search(
                all_ranks, numbers, partial(bound, none_empty=True), settings
            )
        else:
            candidates, bound_ms = search(any_ranks, numbers, bound, settings)
        if candidates:
            return candidates[0], min(bound_ms, candidates[0].total_ms)
    candidates, bound_ms = search(any_ranks, count(fewest), bound, settings)
    return candidates[0], min(bound_ms, candidates[0].total_ms)


class AllRanks:
    """Starts in which each rank has a sequence in each micro-step.

    Next to *light* micro-steps: of one sequence on each rank, of the shortest there are. Long
    sequences bind the others, so that all work is done next to them and light micro-steps cost
    little more than themselves.
    """

    def __init__(self, micro_batch: PipelineClass, sequences: Sequences, ranks: int) -> None:
        self._micro_batch, self._sequences, self._ranks = micro_batch, sequences, ranks

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[FilledMicroSteps]]:
        """List starts next to each number of light micro-steps that may be best; see ``Starter``.

        By ascending bound.
        """
        starts: list[Start[FilledMicroSteps]] = []
        options = sorted(self._list_options(number), key=lambda option: option[0])
        for least_ms, heavy, light in options:
            if max(least_ms, bound_ms) >= best_ms:
                break
            for start in self._list_next_to(heavy, light, number, bound_ms, best_ms):
                starts.append(start)
                best_ms = min(best_ms, start.micro_steps.total_ms)
        return starts

    def _list_options(self, number: int) -> Iterator[tuple[float, Sequences, FilledMicroSteps]]:
        """List light micro-steps of each number, with the other sequences and a bound (ms)."""
        heavy, light = self._sequences, FilledMicroSteps((), ())
        for left in range(number, 0, -1):
            if fewest_of_one_degree(self._micro_batch, heavy, self._ranks) <= left:
                heavy_ms = one_degree_bound_ms(
                    self._micro_batch, heavy, self._ranks, left, none_empty=True
                )
                yield heavy_ms + light.total_ms, heavy, light
            if left > 1:
                heavy, one_more = self._take_light_micro_step(heavy)
                light += one_more

    def _take_light_micro_step(self, sequences: Sequences) -> tuple[Sequences, FilledMicroSteps]:
        """Put the shortest sequences into one micro-step, one a rank, and return the others."""
        left, of_micro_step = sequences.counts.copy(), list[Bin]()
        places = iter(np.flatnonzero(left)[::-1].tolist())
        while len(of_micro_step) < self._ranks:
            place = next(places)
            taken = min(int(left[place]), self._ranks - len(of_micro_step))
            of_micro_step += [[(place, 1)] for _ in range(taken)]
            left[place] -= taken
        light = FilledMicroSteps.from_bins([of_micro_step], [self._alone_ms(place)])
        return Sequences(sequences.lengths, left), light

    def _list_next_to(
        self,
        heavy: Sequences,
        light: FilledMicroSteps,
        number: int,
        bound_ms: float,
        best_ms: float,
    ) -> Iterator[Start[FilledMicroSteps]]:
        """List starts with the sequences in so many micro-steps, next to the light ones."""
        filler = TargetFiller(MicroStepsFiller([self._micro_batch], heavy, self._ranks))
        assigned = LongestFirst([replace(self._micro_batch, count=self._ranks)], heavy)
        left, light_ms = number - len(light.times_ms), light.total_ms

        def improve_from(start: FilledMicroSteps) -> Improve[FilledMicroSteps]:
            """Return what improves a start next to the light ones, if its number stays."""

            def improve(
                _: FilledMicroSteps, bound_ms: float, fills: int, in_common: bool
            ) -> FilledMicroSteps:
                better = filler.improve(start, bound_ms - light_ms, fills, in_common)
                return self._complete(better if len(better.times_ms) == left else start) + light

            return improve

        for starter in (filler, assigned):
            for start in starter.list_starts(left, bound_ms - light_ms, best_ms - light_ms):
                filled = start.micro_steps
                if len(filled.times_ms) == left:
                    whole = self._complete(filled) + light
                    best_ms = min(best_ms, whole.total_ms)
                    yield Start(whole, improve_from(filled))

    def _complete(self, filled: FilledMicroSteps) -> FilledMicroSteps:
        """Move the shortest sequences to micro-steps with fewer of them than ranks."""
        micro_steps = [
            [dict(micro) for _, micro in of_micro_step] for of_micro_step in filled.bins()
        ]
        numbers = [
            sum(sum(micro.values()) for micro in of_micro_step) for of_micro_step in micro_steps
        ]
        if min(numbers) >= self._ranks:
            return filled
        times = list(filled.times_ms)
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
                times[r] = max(times[r], self._alone_ms(shortest))
        return FilledMicroSteps.from_bins(
            [
                [[(i, n) for i, n in micro.items() if n] for micro in of_micro_step]
                for of_micro_step in micro_steps
            ],
            times,
        )

    def _alone_ms(self, place: int) -> float:
        """Time a micro-batch of one sequence (ms)."""
        length, k = int(self._sequences.lengths[place]), self._micro_batch
        return length * (k.a * length + k.b) + k.c
