"""Placement of all pipelines of a step, as each rank needs it.

The sync of parameters and gradients needs every rank's parameters, and whether it may
run next to backward depends on all pipelines, not on one rank's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from seqplan.plans.groups import Group
from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Scheme


@dataclass(frozen=True, slots=True)
class PlacedPipeline:
    """A pipeline's scheme and its global ranks; order from fastest: tp, ulysses, ring, pp."""

    scheme: Scheme
    ranks: Group


Placement = tuple[PlacedPipeline, ...]
"""The pipelines of a step in the plan's order, those without micro-batches included."""


def placement_of(pipelines: Iterable[PlannedPipeline]) -> Placement:
    """Return where a plan's pipelines run."""
    return tuple(PlacedPipeline(pipeline.scheme, pipeline.ranks) for pipeline in pipelines)


def can_overlap_reduction(placement: Placement) -> bool:
    """Return whether gradients may leave during backward, the same for all ranks of a step.

    Only if every pipeline has one stage and no rank is in two: otherwise a rank would wait, in
    its last backward, for a message that another rank posts only after work that itself waits for
    the first. If a device runs one communication kernel at a time that never ends.
    """
    ranks = [rank for pipeline in placement for rank in pipeline.ranks]
    return len(set(ranks)) == len(ranks) and all(pipeline.scheme.pp == 1 for pipeline in placement)


def rank_runs(ranks: Sequence[int]) -> list[list[int]]:
    """Write ranks, in their order, as ``[first, stop]`` runs of consecutive ones."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank:
            runs[-1][1] = rank + 1
        else:
            runs.append([rank, rank + 1])
    return runs


def ranks_of_runs(runs: Iterable[Sequence[int]]) -> Group:
    """Return the ranks that ``rank_runs`` wrote."""
    return tuple(chain.from_iterable(range(first, stop) for first, stop in runs))
