"""Target fill: place every sequence so that every pipeline ends by a target, or report failure.

This is the inner loop of the step's search: each class is filled by a compiled kernel, or, with the
same result, by plain Python over plain numbers (``kernel``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.class_fill import PythonFill
from seqplan.planner.placement.fleet import (
    ClassPlacement,
    Fleet,
    Floats,
    Ints,
    PipelineClass,
    longest_alone,
)
from seqplan.planner.placement.kernel import KernelFill, PackedPlacement, kernel_fills
from seqplan.planner.placement.mode_fill import ModeTables
from seqplan.plans.scheme import Strategy


@dataclass(frozen=True, eq=False)
class Filling:
    """A complete placement: on each class, as made or still packed; and form S per pipeline."""

    placements: tuple[ClassPlacement | PackedPlacement, ...]
    pipeline_ms: tuple[tuple[float, ...], ...]

    @cached_property
    def bins(self) -> tuple[ClassPlacement, ...]:
        """Return the micro-batches per class and pipeline; a search reads few of its fillings."""
        return tuple(
            placement.unpack() if isinstance(placement, PackedPlacement) else placement
            for placement in self.placements
        )

    @property
    def objective_ms(self) -> float:
        """Return the time of the slowest pipeline."""
        return max(max(times) for times in self.pipeline_ms)


@dataclass(frozen=True)
class Shortfall:
    """A fill that failed, by about how much GPU-time (ms)."""

    gpu_ms: float


@dataclass(frozen=True)
class Placement:
    """A strategy with every sequence of a batch placed on it."""

    fleet: Fleet
    filling: Filling

    @property
    def strategy(self) -> Strategy:
        """Return the strategy that the batch is placed on."""
        return self.fleet.strategy

    @property
    def objective_ms(self) -> float:
        """Return the time of the slowest pipeline."""
        return self.filling.objective_ms


class Filler:
    """Fills one fleet with one batch for any number of targets."""

    def __init__(self, fleet: Fleet, batch: Batch) -> None:
        self.fleet = fleet
        self.lengths: list[int] = batch.distinct.tolist()
        self._batch = batch
        self._compiled = kernel_fills(fleet.classes, batch.longest)
        self._works: dict[PipelineClass, Floats] = {}
        self._tables: ModeTables = {}

    def fill(
        self, target_ms: float, ceiling_ms: float | None = None, *, new_first: bool = False
    ) -> Filling | Shortfall:
        """Place all sequences with every pipeline's form S ≤ ``target_ms``, or return a shortfall.

        1. Classes are ordered from the one that can hold the longest sequence down.
        2. Of each class, pipelines are opened for the sequences that no later class can hold.
        3. Then they, and new ones, are topped up with any: always the longest unassigned sequence
           that fits the rest of the micro-batch (tokens and time), micro-batch after
           micro-batch. ``new_first``: pipelines of step 2 open new micro-batches for the longest
           that are left before they top up the open ones, which may have little room.

        ``ceiling_ms`` ≥ target: a pipeline whose first sequence alone needs more than the target
        may take up to as long as that sequence needs, but no longer than the ceiling; so that one
        long sequence does not loosen the other pipelines.
        Complexity: O(placements · log n) and O(n) set-up.
        """
        ceiling = target_ms if ceiling_ms is None else ceiling_ms
        classes = self.fleet.classes
        unassigned = self._start()
        reach = [
            min(pipeline_class.capacity, longest_alone(pipeline_class, ceiling))
            for pipeline_class in classes
        ]
        order = sorted(range(len(classes)), key=lambda k: (-reach[k], k))
        for k, later in zip(order, [*order[1:], None], strict=True):
            pipeline_class = classes[k]
            forced_above = 0 if later is None else reach[later]
            if later is None and ceiling == target_ms:
                # Whether the rest cannot fit the last class, however well it is placed.
                missing = self._missing_ms(unassigned, pipeline_class)
                missing -= target_ms * pipeline_class.count
                if missing > 0:
                    return Shortfall(missing * pipeline_class.gpus)
            unassigned.fill_class(
                pipeline_class, reach[k], forced_above, target_ms, ceiling, new_first
            )
        if unassigned.left:
            last = classes[order[-1]]
            return Shortfall(self._missing_ms(unassigned, last) * last.gpus)
        placed = dict(zip(order, unassigned.placements(), strict=True))
        placements, times = zip(*(placed[k] for k in range(len(classes))), strict=True)
        return Filling(placements, times)

    def _start(self) -> PythonFill | KernelFill:
        """Take all sequences as unassigned."""
        batch = self._batch
        if self._compiled:
            return KernelFill(batch.distinct, batch.multiplicity, self._tables)
        return PythonFill(self.lengths, *self._lists, self._tables)

    @cached_property
    def _lists(self) -> tuple[list[int], list[int]]:
        """Make lists of the counts, and of the lengths negated, for fills in Python."""
        return self._batch.multiplicity.tolist(), [-length for length in self.lengths]

    def _missing_ms(
        self, unassigned: PythonFill | KernelFill, pipeline_class: PipelineClass
    ) -> float:
        """Add up the work of all that is unassigned, on pipelines of a class (ms).

        At pp = 1 tokens also cost their share of the micro-batches' overhead.
        """
        counts = np.array(unassigned.counts, dtype=np.float64)
        return float(self._work(pipeline_class) @ counts) * (1 - 1e-9)

    def _work(self, pipeline_class: PipelineClass) -> Floats:
        if pipeline_class not in self._works:
            one_stage = pipeline_class.pp == 1
            work = pipeline_class.work_with_overhead_ms if one_stage else pipeline_class.work_ms
            self._works[pipeline_class] = work(self._batch.distinct)
        return self._works[pipeline_class]


def take_unassigned(
    lengths: Ints,
    counts: Ints,
    classes: Sequence[PipelineClass],
    tables: ModeTables | None = None,
) -> PythonFill | KernelFill:
    """Take ``counts`` sequences of each length as unassigned.

    ``lengths``: tokens, descending; they are to be filled into ``classes``. ``tables``: of these
    lengths, which calls share.
    """
    if kernel_fills(classes, int(lengths[0])):
        return KernelFill(lengths, counts, tables)
    as_list: list[int] = lengths.tolist()
    return PythonFill(as_list, counts.tolist(), [-length for length in as_list], tables)
