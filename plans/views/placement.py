"""Placement of all pipelines of a step, as each rank needs it.

The sync of parameters and gradients needs every rank's parameters, and whether it may
run next to backward depends on all pipelines, not on one rank's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from seqplan.plans.groups import Group
from seqplan.plans.plan import Plan, PlannedPipeline
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


def place_on_ranks(plan: Plan, world_size: int) -> Plan:
    """Number a plan's ranks as a job of ``world_size`` processes numbers them.

    A job that is started again without the lost ranks counts the others from 0, in their order.
    The plan itself if it has as many ranks as the job. ``ValueError`` for any other number.
    """
    if plan.world_size == world_size:
        return plan
    numbers = number_ranks(plan.world_size, plan.lost_ranks, world_size)
    lost = frozenset(plan.lost_ranks)
    return replace(
        plan,
        world_size=world_size,
        pipelines=tuple(
            replace(pipeline, ranks=tuple(numbers[rank] for rank in pipeline.ranks))
            for pipeline in plan.pipelines
        ),
        idle_ranks=tuple(numbers[rank] for rank in plan.idle_ranks if rank not in lost),
        groups=tuple(tuple(numbers[rank] for rank in group) for group in plan.groups),
        lost_ranks=(),
    )


def number_ranks(planned: int, lost: Sequence[int], world_size: int) -> dict[int, int]:
    """Number the ranks that are left of ``planned`` ones in a job of ``world_size`` processes.

    ``ValueError`` if the job has another number of ranks.
    """
    left = sorted({*range(planned)} - {*lost})
    if len(left) != world_size:
        of_which = f", of which {len(left)} are left" if lost else ""
        raise ValueError(
            f"is planned for {planned} ranks{of_which}, the job has {world_size}. Plan for as "
            "many GPUs"
        )
    return {rank: number for number, rank in enumerate(left)}


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
