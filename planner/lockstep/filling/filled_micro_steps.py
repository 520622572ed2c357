"""Micro-steps that were filled: of each its groups by class, with their sequences by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import in_stages_ms
from seqplan.planner.lockstep.filling.busy_ranks import Group
from seqplan.planner.placement.fill import AnyPlacement, PackedPlacement
from seqplan.planner.placement.fleet import Bin


@dataclass(frozen=True)
class ClassGroups:
    """The groups of one class in a micro-step and their micro-batches, still packed perhaps."""

    class_index: int
    placement: AnyPlacement

    def bins(self) -> list[tuple[int, Bin]]:
        """List the groups with sequences: (index of the class, sequences)."""
        placement = self.placement
        unpacked = placement.unpack() if isinstance(placement, PackedPlacement) else placement
        return [
            (self.class_index, [entry for micro in pipeline for entry in micro])
            for pipeline in unpacked
            if pipeline
        ]


@dataclass(frozen=True)
class FilledMicroSteps:
    """Micro-steps filled to targets, by the classes of their groups.

    ``times_ms``: of each micro-step, at one of ``stages`` stages.
    """

    micro_steps: tuple[tuple[ClassGroups, ...], ...]
    times_ms: tuple[float, ...]
    stages: int = 1

    @cached_property
    def total_ms(self) -> float:
        """Return the time of the micro-steps, one after another through the stages."""
        return in_stages_ms(self.times_ms, self.stages)

    @classmethod
    def from_bins(
        cls, micro_steps: Sequence[Sequence[Bin]], times_ms: Sequence[float]
    ) -> FilledMicroSteps:
        """Make micro-steps of one degree from their micro-batches."""
        placements = [tuple((micro,) for micro in micro_batches) for micro_batches in micro_steps]
        return cls(tuple((ClassGroups(0, p),) for p in placements), tuple(times_ms))

    def of_class(self, k: int) -> FilledMicroSteps:
        """Return these micro-steps of one degree as those of the class ``k`` of several."""
        micro_steps = tuple(
            tuple(replace(g, class_index=k) for g in groups) for groups in self.micro_steps
        )
        return replace(self, micro_steps=micro_steps)

    def __add__(self, after: FilledMicroSteps) -> FilledMicroSteps:
        """Return these micro-steps and others after them."""
        micro_steps, times = self.micro_steps + after.micro_steps, self.times_ms + after.times_ms
        return FilledMicroSteps(micro_steps, times, self.stages)

    def bins(self) -> list[list[tuple[int, Bin]]]:
        """List each micro-step's groups with sequences: (index of the class, sequences)."""
        return [
            [pair for groups in by_class for pair in groups.bins()] for by_class in self.micro_steps
        ]

    def groups(self, batch: Batch) -> list[list[Group]]:
        """List the groups of each micro-step with their sequences' positions in the batch."""
        pools = [iter(positions) for positions in batch.positions]
        return [
            [(k, tuple(next(pools[i]) for i, n in micro for _ in range(n))) for k, micro in groups]
            for groups in self.bins()
            if groups
        ]
