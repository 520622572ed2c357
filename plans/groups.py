"""Where a rank stands in its pipeline, and the process groups that follow from it.

Inside a pipeline the rank at ``index`` of ``PlannedPipeline.ranks`` has the coordinates t, u, r, p
on the axes tp, ulysses, ring, pp:

    index = ((p · ring + r) · ulysses + u) · tp + t

so tp varies fastest, then ulysses, ring and pp. A group holds the ranks that differ on one axis
only, ordered along it; a sequence-parallel group runs over ulysses and ring together, ulysses
fastest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from seqplan.plans.plan import PlannedPipeline
from seqplan.plans.scheme import Scheme

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's index on each axis of its pipeline, from 0 to degree − 1."""

    tp: int
    pp: int
    ulysses: int
    ring: int

    @classmethod
    def from_rank_index(cls, scheme: Scheme, index: int) -> Coordinates:
        """Return the coordinates of the rank at ``index`` of a pipeline's ranks."""
        rest, tp = divmod(index, scheme.tp)
        rest, ulysses = divmod(rest, scheme.ulysses)
        pp, ring = divmod(rest, scheme.ring)
        return cls(tp=tp, pp=pp, ulysses=ulysses, ring=ring)

    def index(self, scheme: Scheme) -> int:
        """Return the index that has these coordinates: the inverse of ``of``."""
        block = (self.pp * scheme.ring + self.ring) * scheme.ulysses + self.ulysses
        return block * scheme.tp + self.tp


def pipeline_groups(pipeline: PlannedPipeline) -> list[Group]:
    """List every process group of one pipeline in creation order.

    Groups of one rank are left out. First all tp groups, then ulysses, ring, sp (only if both its
    axes are longer than 1) and
    pp groups; within a kind by the index of the first member.
    """
    scheme = pipeline.scheme
    tp, ulysses, ring, pp = scheme.tp, scheme.ulysses, scheme.ring, scheme.pp
    groups = _along(pipeline.ranks, 1, tp)
    groups += _along(pipeline.ranks, tp, ulysses)
    groups += _along(pipeline.ranks, tp * ulysses, ring)
    if ulysses > 1 and ring > 1:
        groups += _along(pipeline.ranks, tp, ulysses * ring)
    groups += _along(pipeline.ranks, scheme.stage_gpus, pp)
    return groups


def process_groups(pipelines: Iterable[PlannedPipeline]) -> tuple[Group, ...]:
    """List the groups of a step: its pipelines' in list order, each at its first occurrence.

    Every rank derives the same list, so that groups are created in one order everywhere. The same
    ranks in another order are another group.
    """
    return tuple(
        dict.fromkeys(group for pipeline in pipelines for group in pipeline_groups(pipeline))
    )


def _along(ranks: Group, stride: int, size: int) -> list[Group]:
    """Cut ranks into groups of ``size`` whose indexes lie ``stride`` apart."""
    if size == 1:
        return []
    span = stride * size
    return [
        ranks[start + offset : start + span : stride]
        for start in range(0, len(ranks), span)
        for offset in range(stride)
    ]
