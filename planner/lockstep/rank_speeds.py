"""Micro-steps of one micro-batch a rank, where some ranks compute slower than others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from math import ceil

from seqplan.planner.lockstep.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filler import MicroStepsFiller, Opening
from seqplan.planner.lockstep.micro_step_bounds import (
    Sequences,
    fewest_of_one_degree,
    one_degree_bound_ms,
)
from seqplan.planner.lockstep.search import TRIED_FILLS, SearchSettings, TargetFiller, search
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
    starter = TargetFiller(SpeedsFiller(classes, sequences, speed))
    bound = partial(one_degree_bound_ms, classes[0], sequences, ranks, speed=speed)
    first = ceil(fewest / multiple) * multiple
    for numbers in (range(first, number // ranks + 1, multiple), count(fewest)):
        found, bound_ms = search([starter], numbers, bound, SETTINGS)
        if found:
            return found[0], min(bound_ms, found[0].total_ms)
    raise AssertionError("one sequence per micro-batch always fits")


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
