"""Micro-steps of one micro-batch a rank, where some ranks compute slower than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf

import numpy as np

from seqplan.planner.lockstep.filled_micro_steps import ClassGroups, FilledMicroSteps
from seqplan.planner.lockstep.filler import MicroStepsFiller, Opening
from seqplan.planner.lockstep.micro_step_bounds import (
    Sequences,
    fewest_of_one_degree,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.one_degree import FEW, LOOSE
from seqplan.planner.lockstep.search import (
    TRIED_FILLS,
    SearchSettings,
    Start,
    Starter,
    TargetFiller,
    search,
)
from seqplan.planner.placement.fill import Fill
from seqplan.planner.placement.fleet import Ints, PipelineClass

SETTINGS = SearchSettings(extra=2, improved=2, fills=4 * TRIED_FILLS)
"""Starts are improved longer than on equal ranks, as they are the only ones."""


def plan_rank_speeds(
    classes: Sequence[PipelineClass], speed: float, sequences: Sequences, multiple: int = 1
) -> tuple[FilledMicroSteps, float]:
    """Find micro-steps for all sequences, and a lower bound over all plans (ms).

    ``classes``: the ranks of each speed, the fastest first, with as many as their ``count``; all
    hold as many tokens. ``speed``: of all ranks, in fastest ones. ``multiple``: of which the number
    of micro-steps is if sequences suffice.
    """
    ranks = sum(k.count for k in classes)
    fewest = fewest_of_one_degree(classes[0], sequences, ranks)
    number = int(sequences.counts.sum())
    starters: list[Starter[FilledMicroSteps]] = [
        TargetFiller(SpeedsFiller(classes, sequences, speed)),
        LongestFirst(classes, sequences),
    ]
    bound = partial(_bound_ms, classes, sequences, ranks, speed)
    first = ceil(fewest / multiple) * multiple
    for numbers in (range(first, number // ranks + 1, multiple), count(fewest)):
        candidates, bound_ms = search(starters, numbers, bound, SETTINGS)
        if candidates:
            return candidates[0], min(bound_ms, candidates[0].total_ms)
    raise AssertionError("one sequence per micro-batch always fits")


def _bound_ms(
    classes: Sequence[PipelineClass],
    sequences: Sequences,
    ranks: int,
    speed: float,
    number: int,
) -> float:
    """Prove a lower bound (ms) on every plan of ``number`` micro-steps or more.

    Of the bounds by number it is the least: that of all ranks by their speed, and that of the
    tokens for which faster ranks have no room. The first rises with the number, the other falls.
    """
    least_ms = inf
    for micro_steps in count(number):
        by_speed_ms = one_degree_bound_ms(classes[0], sequences, ranks, micro_steps, speed=speed)
        left_ms = _left_over_bound_ms(classes, sequences, micro_steps)
        least_ms = min(least_ms, max(by_speed_ms, left_ms))
        if left_ms <= by_speed_ms:
            return least_ms
    raise AssertionError("faster ranks hold all in as many micro-steps as there are sequences")


def _left_over_bound_ms(
    classes: Sequence[PipelineClass], sequences: Sequences, micro_steps: int
) -> float:
    """Bound the time of slower ranks by the tokens that all faster ones cannot hold.

    Of the ranks from a class on, one has the mean of their tokens at least. Each takes the least
    work of any sequence's, and its share of a micro-batch's overhead.
    """
    padded = np.array([classes[0].pad(length) for length in sequences.lengths.tolist()])
    tokens, faster, bound_ms = float(padded @ sequences.counts), 0, 0.0
    there = sequences.counts > 0
    for k, of_class in enumerate(classes):
        left = tokens - micro_steps * faster * of_class.capacity
        if left <= 0:
            break
        per_token = (of_class.work_ms(sequences.lengths)[there] / padded[there]).min()
        slower = sum(other.count for other in classes[k:])
        bound_ms = max(bound_ms, left / slower * (per_token + of_class.c / of_class.capacity))
        faster += of_class.count
    return bound_ms * (1 - 1e-9)


class SpeedsFiller(MicroStepsFiller):
    """Fills micro-steps to targets, each with the ranks of all speeds, the fastest first."""

    def __init__(
        self, classes: Sequence[PipelineClass], sequences: Sequences, speed: float
    ) -> None:
        super().__init__(classes, sequences, sum(k.count for k in classes))
        self._speed = speed
        self.area_ms *= self.ranks / speed

    def of_left(self, counts: Ints) -> SpeedsFiller:
        """Return a filler of the rest of each length."""
        return SpeedsFiller(self.classes, Sequences(self.sequences.lengths, counts), self._speed)

    def fill_micro_step(self, fill: Fill, longest: int, target_ms: float) -> list[int]:
        """Fill the micro-batches of all ranks, as far as sequences are left."""
        filled_classes = []
        for k, costs in enumerate(self.costs):
            reach = costs.longest_alone(target_ms)
            if not fill.left or reach <= 0:
                break
            filled_classes.append(k)
            self.fill_groups(fill, Opening(k, self.classes[k].count, 0, reach, target_ms))
        return filled_classes


class LongestFirst:
    """Starts with each sequence, longest first, in the micro-batch that ends first with it.

    Targets leave no room if ranks are nearly full of tokens. Here each has the room that is left.
    """

    def __init__(self, classes: Sequence[PipelineClass], sequences: Sequences) -> None:
        self._classes, self._sequences = classes, sequences

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[FilledMicroSteps]]:
        """List the start of so many micro-steps, if it may gain much; see ``Starter``."""
        few = int(self._sequences.counts.sum()) <= FEW
        if not few or best_ms <= bound_ms * (1 + LOOSE):
            return []
        micro_batches = self._assign(number)
        return [] if micro_batches is None else [Start(self._join(micro_batches, number))]

    def _assign(self, number: int) -> list[list[_MicroBatch]] | None:
        """Return the micro-batches of each class; None if a sequence finds no room."""
        heaps = [
            [_MicroBatch(0.0, place) for place in range(number * k.count)] for k in self._classes
        ]
        lengths = self._sequences.lengths.tolist()
        for i, sequences in enumerate(self._sequences.counts.tolist()):
            padded = self._classes[0].pad(lengths[i])
            works = [lengths[i] * (k.a * lengths[i] + k.b) for k in self._classes]
            for _ in range(sequences):
                ends: list[tuple[float, int]] = []
                full: list[list[_MicroBatch]] = []
                for k, heap in enumerate(heaps):
                    full.append([])
                    while heap and heap[0].tokens + padded > self._classes[k].capacity:
                        full[k].append(heappop(heap))
                    if heap:
                        ends.append((heap[0].load_ms + works[k], k))
                if not ends:
                    return None
                _, k = min(ends)
                chosen = heappop(heaps[k])
                chosen.add(i, works[k], padded)
                heappush(heaps[k], chosen)
                for heap, skipped in zip(heaps, full, strict=True):
                    for micro_batch in skipped:
                        heappush(heap, micro_batch)
        return heaps

    def _join(self, micro_batches: list[list[_MicroBatch]], number: int) -> FilledMicroSteps:
        """Join micro-batches to micro-steps: the slowest of each class together."""
        groups: list[list[ClassGroups]] = [[] for _ in range(number)]
        times = [0.0] * number
        for k, of_class in enumerate(micro_batches):
            of_class.sort(key=lambda m: (-m.load_ms, m.place))
            count = self._classes[k].count
            for step in range(number):
                together = [m for m in of_class[step * count : (step + 1) * count] if m.tokens]
                if together:
                    bins = tuple((list(m.sequences.items()),) for m in together)
                    groups[step].append(ClassGroups(k, bins))
                    times[step] = max(times[step], together[0].load_ms + self._classes[k].c)
        taken = [step for step in range(number) if groups[step]]
        return FilledMicroSteps(
            tuple(tuple(groups[step]) for step in taken), tuple(times[step] for step in taken)
        )


@dataclass(order=True)
class _MicroBatch:
    """A micro-batch: its work (ms), the sequences of each length, and its padded tokens."""

    load_ms: float
    place: int
    sequences: dict[int, int] = field(default_factory=dict, compare=False)
    tokens: int = field(default=0, compare=False)

    def add(self, length: int, work_ms: float, padded: int) -> None:
        """Add a sequence of a length, by its place."""
        self.sequences[length] = self.sequences.get(length, 0) + 1
        self.load_ms += work_ms
        self.tokens += padded
