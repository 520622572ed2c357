"""Pipelines that share ranks: blocks of several schemes, and a pipeline in each of its modes.

What runs on the same ranks takes the sum of its times in any order. So a placement ends by T if the
times of all that hold a rank sum to at most T, for each rank. With stages the modes of a pipeline
share its bubbles, those of its largest micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqplan.planner.exact.instance import Instance
from seqplan.planner.exact.model import ExactSolution
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Bin, ClassPlacement, Fleet, PipelineBins, PipelineClass
from seqplan.planner.placement.greedy import estimate_ms
from seqplan.planner.placement.pack import pack

MOST_PIPELINES = 64
"""Pipelines of a problem that is solved, each scheme and mode of a block counted."""


@dataclass(frozen=True)
class SharedRanks:
    """Pipelines of one mode; ``paths``: those that hold each of the ranks."""

    fleet: Fleet
    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def from_modes(cls, fleet: Fleet) -> SharedRanks | None:
        """Split pipelines into one for each of their recomputation modes.

        None if there are too many pipelines then.
        """
        classes: list[PipelineClass] = []
        paths: list[tuple[int, ...]] = []
        first = 0
        for k in fleet.classes:
            classes += [replace(of_mode, count=k.count) for of_mode in k.by_mode]
            last = first + len(k.by_mode) * k.count
            paths += [tuple(range(first + p, last, k.count)) for p in range(k.count)]
            first = last
        return cls(Fleet(fleet.strategy, tuple(classes)), tuple(paths)).limit()

    def limit(self) -> SharedRanks | None:
        """Return itself, or None for more than ``MOST_PIPELINES``."""
        return self if len(self.fleet.pipelines) <= MOST_PIPELINES else None

    def place(self, instance: Instance, answer: ExactSolution) -> list[PipelineBins] | None:
        """Pack the sequences of each pipeline, negligible ones where their ranks end first.

        None without an answer, or if a sequence fits no pipeline.
        """
        if answer.pipeline is None:
            return None
        pipelines = self.fleet.pipelines
        distinct = instance.batch.distinct.tolist()
        members: list[list[int]] = [[] for _ in pipelines]
        for i, p in zip(instance.sequences, answer.pipeline, strict=True):
            members[p].append(i)
        for i, number in enumerate(instance.negligible.tolist()):
            for _ in range(number):
                first = self._find_first_to_end(members, distinct, i)
                if first is None:
                    return None
                members[first].append(i)
        return [
            _pack(k, distinct, part) if part else ()
            for k, part in zip(pipelines, members, strict=True)
        ]

    def _find_first_to_end(
        self, members: Sequence[list[int]], distinct: list[int], i: int
    ) -> int | None:
        """Choose the smallest pipeline that holds a sequence and whose ranks have least to do."""
        pipelines = self.fleet.pipelines
        times = [_time_ms(k, distinct, part) for k, part in zip(pipelines, members, strict=True)]
        smallest = min(k.gpus for k in pipelines)
        best: tuple[float, int] | None = None
        for path in self.paths:
            ranks_ms = sum(times[p] for p in path)
            for p in path:
                k = pipelines[p]
                if k.pad(distinct[i]) <= k.capacity:
                    more = _time_ms(k, distinct, [*members[p], i]) - times[p]
                    option = (ranks_ms + more * k.gpus / smallest, p)
                    best = option if best is None or option < best else best
        return None if best is None else best[1]

    def combine(self, fleet: Fleet, instance: Instance, bins: Sequence[PipelineBins]) -> Filling:
        """Return the placement on the fleet that ``from_modes`` split."""
        tables = FillTables.from_batch(instance.batch)
        paths = iter(self.paths)
        placements: list[ClassPlacement] = []
        for k in fleet.classes:
            of_class = [next(paths) for _ in range(k.count)]
            placements.append(
                tuple(tuple(micro for p in path for micro in bins[p]) for path in of_class)
            )
        return Filling(
            tuple(placements),
            tuple(
                tuple(estimate_ms(tables.find_costs(k), pipeline) for pipeline in placement)
                for k, placement in zip(fleet.classes, placements, strict=True)
            ),
        )


def _pack(k: PipelineClass, distinct: list[int], part: list[int]) -> tuple[Bin, ...]:
    packing = pack(k, [distinct[i] for i in part])
    return tuple(sorted(Counter(part[j] for j in micro).items()) for micro in packing.micro_batches)


def _time_ms(k: PipelineClass, distinct: list[int], part: list[int]) -> float:
    """Time sequences on a pipeline, with the micro-batches that their tokens need (ms)."""
    tokens = sum(k.pad(distinct[i]) for i in part)
    work = sum(distinct[i] * (k.a * distinct[i] + k.b) for i in part)
    return work + k.c * -(-tokens // k.capacity)
