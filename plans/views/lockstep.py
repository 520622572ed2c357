"""Micro-batches in lockstep: the rounds of a step in which each rank runs.

Ranks that do something together after every micro-batch, such as summing gradients, must agree on
which of their micro-batches go together. Here each goes to the first round in which all ranks of
its pipeline are free, in the plan's order, so that no two ranks wait for each other; a rank without
a micro-batch in a round only takes part in what all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqplan.plans.views.placement import Placement


class LockstepSchedule(NamedTuple):
    """The round of each of a rank's micro-batches, ascending, and how many rounds there are."""

    own: tuple[int, ...]
    total: int


def lockstep_rounds(placement: Placement, counts: Sequence[int], rank: int) -> LockstepSchedule:
    """Put the micro-batches of a step into rounds; ``counts``: how many each pipeline has."""
    free: dict[int, int] = {}
    rounds: list[int] = []
    for pipeline, count in zip(placement, counts, strict=True):
        first = max(free.get(member, 0) for member in pipeline.ranks)
        if count:
            free.update(dict.fromkeys(pipeline.ranks, first + count))
            if rank in pipeline.ranks:
                rounds.extend(range(first, first + count))
    return LockstepSchedule(tuple(rounds), max(free.values(), default=0))
