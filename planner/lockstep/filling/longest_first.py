"""Micro-steps of sequences that are assigned one by one, the longest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from seqplan.planner.lockstep.bounds.micro_step_bounds import Sequences
from seqplan.planner.lockstep.filling.filled_micro_steps import ClassGroups, FilledMicroSteps
from seqplan.planner.lockstep.filling.search import Start
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.placement.least_loaded import Loaded, assign_to_least_loaded

LOOSE, FEW = 1e-2, 2_000
"""Above this gap up to so many sequences are assigned one by one, and a quarter of them at any
(measured: 2 µs a sequence and assignment)."""


class LongestFirst:
    """Starts with each sequence, longest first, in the micro-batch that ends first with it.

    Targets leave no room if ranks are nearly full of tokens. Here each has the room that is left.
    """

    def __init__(self, classes: Sequence[PipelineClass], sequences: Sequences) -> None:
        self._classes, self._sequences = classes, sequences

    def list_starts(
        self, number: int, bound_ms: float, best_ms: float
    ) -> list[Start[FilledMicroSteps]]:
        """List the start of so many micro-steps, if it may gain much; see ``Starter``."""
        few = FEW if best_ms > bound_ms * (1 + LOOSE) else FEW // 4
        if int(self._sequences.counts.sum()) > few:
            return []
        assigned = self._assign(number)
        return [] if assigned is None else [Start(self._join(assigned, number))]

    def _assign(self, number: int) -> list[list[Loaded]] | None:
        """Return the micro-batches of each class; None if a sequence finds no room."""
        counts, classes = self._sequences.counts.tolist(), self._classes
        items = [
            (i, [length * (k.a * length + k.b) for k in classes], classes[0].pad(length))
            for i, length in enumerate(self._sequences.lengths.tolist())
        ]
        every = (item for item, count in zip(items, counts, strict=True) for _ in range(count))
        return assign_to_least_loaded(
            every, [number * k.count for k in classes], [k.capacity for k in classes]
        )

    def _join(self, assigned: list[list[Loaded]], number: int) -> FilledMicroSteps:
        """Join micro-batches to micro-steps: the slowest of each class together."""
        groups: list[list[ClassGroups]] = [[] for _ in range(number)]
        times = [0.0] * number
        for k, of_class in enumerate(assigned):
            slowest_first = sorted(of_class, key=lambda micro_batch: -micro_batch[0])
            count = self._classes[k].count
            for step in range(number):
                together = slowest_first[step * count : (step + 1) * count]
                bins = tuple((list(Counter(places).items()),) for _, places in together if places)
                if bins:
                    groups[step].append(ClassGroups(k, bins))
                    times[step] = max(times[step], together[0][0] + self._classes[k].c)
        taken = [step for step in range(number) if groups[step]]
        return FilledMicroSteps(
            tuple(tuple(groups[step]) for step in taken), tuple(times[step] for step in taken)
        )
