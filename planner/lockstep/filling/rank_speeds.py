"""Micro-steps of one micro-batch a rank, where some ranks compute slower than others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf

import numpy as np

from seqplan.planner.lockstep.bounds.micro_step_bounds import Sequences, one_degree_bound_ms
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller, Opening
from seqplan.planner.placement.fill import Fill
from seqplan.planner.placement.fleet import Ints, PipelineClass


def speeds_bound_ms(
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
