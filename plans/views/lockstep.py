"""Micro-batches in lockstep: the micro-steps of a step in which each rank runs.

Ranks that do something together after every micro-batch, such as summing gradients, must agree on
which of their micro-batches go together. Here each goes to the first micro-step in which all ranks
of its pipeline are free, in the plan's order, so that no two ranks wait for each other; a rank
without a micro-batch in a micro-step only takes part in what all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqplan.plans.experts import place_micro_steps
from seqplan.plans.views.placement import Placement


class LockstepSchedule(NamedTuple):
    """The micro-step of each of a rank's micro-batches, ascending, and their number."""

    with_work: tuple[int, ...]
    total: int


def lockstep_micro_steps(
    placement: Placement, counts: Sequence[int], rank: int
) -> LockstepSchedule:
    """Put the micro-batches of a step into micro-steps; ``counts``: how many each pipeline has."""
    first = place_micro_steps([pipeline.ranks for pipeline in placement], counts)
    placed = [
        start + number
        for pipeline, start, count in zip(placement, first, counts, strict=True)
        if rank in pipeline.ranks
        for number in range(count)
    ]
    lasts = [start + count for start, count in zip(first, counts, strict=True) if count]
    return LockstepSchedule(tuple(placed), max(lasts, default=0))
