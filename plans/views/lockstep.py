"""Micro-batches in lockstep: the micro-steps of a step in which each rank runs.

Ranks that do something together after every micro-batch, such as summing gradients, must agree on
which of their micro-batches go together. Here each goes to the first micro-step in which all ranks
of its pipeline are free, in the plan's order, so that no two ranks wait for each other; a rank
without a micro-batch in a micro-step only takes part in what all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqplan.plans.views.placement import Placement


class LockstepSchedule(NamedTuple):
    """The micro-step of each of a rank's micro-batches, ascending, and their number."""

    own: tuple[int, ...]
    total: int


def lockstep_micro_steps(
    placement: Placement, counts: Sequence[int], rank: int
) -> LockstepSchedule:
    """Put the micro-batches of a step into micro-steps; ``counts``: how many each pipeline has."""
    free: dict[int, int] = {}
    micro_steps: list[int] = []
    for pipeline, count in zip(placement, counts, strict=True):
        first = max(free.get(member, 0) for member in pipeline.ranks)
        if count:
            free.update(dict.fromkeys(pipeline.ranks, first + count))
            if rank in pipeline.ranks:
                micro_steps.extend(range(first, first + count))
    return LockstepSchedule(tuple(micro_steps), max(free.values(), default=0))
