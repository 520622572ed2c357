"""Micro-steps of sequences that are assigned one by one, the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from seqplan.planner.lockstep.filled_micro_steps import ClassGroups, FilledMicroSteps
from seqplan.planner.lockstep.micro_step_bounds import Sequences
from seqplan.planner.lockstep.search import Start
from seqplan.planner.placement.fleet import PipelineClass

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
        micro_batches = self._assign(number)
        return [] if micro_batches is None else [Start(self._join(micro_batches, number))]

    def _assign(self, number: int) -> list[list[_MicroBatch]] | None:
        """Return the micro-batches of each class; None if a sequence finds no room."""
        heaps = [
            [_MicroBatch(0.0, place) for place in range(number * k.count)] for k in self._classes
        ]
        lengths = self._sequences.lengths.tolist()
        for i, sequences in enumerate(self._sequences.counts.tolist()):
            padded = self._classes[0].pad(lengths[i])
            works = [lengths[i] * (k.a * lengths[i] + k.b) for k in self._classes]
            for _ in range(sequences):
                ends: list[tuple[float, int]] = []
                full: list[list[_MicroBatch]] = []
                for k, heap in enumerate(heaps):
                    full.append([])
                    while heap and heap[0].tokens + padded > self._classes[k].capacity:
                        full[k].append(heappop(heap))
                    if heap:
                        ends.append((heap[0].load_ms + works[k], k))
                if not ends:
                    return None
                _, k = min(ends)
                chosen = heappop(heaps[k])
                chosen.add(i, works[k], padded)
                heappush(heaps[k], chosen)
                for heap, skipped in zip(heaps, full, strict=True):
                    for micro_batch in skipped:
                        heappush(heap, micro_batch)
        return heaps

    def _join(self, micro_batches: list[list[_MicroBatch]], number: int) -> FilledMicroSteps:
        """Join micro-batches to micro-steps: the slowest of each class together."""
        groups: list[list[ClassGroups]] = [[] for _ in range(number)]
        times = [0.0] * number
        for k, of_class in enumerate(micro_batches):
            of_class.sort(key=lambda m: (-m.load_ms, m.place))
            count = self._classes[k].count
            for step in range(number):
                together = [m for m in of_class[step * count : (step + 1) * count] if m.tokens]
                if together:
                    bins = tuple((list(m.sequences.items()),) for m in together)
                    groups[step].append(ClassGroups(k, bins))
                    times[step] = max(times[step], together[0].load_ms + self._classes[k].c)
        taken = [step for step in range(number) if groups[step]]
        return FilledMicroSteps(
            tuple(tuple(groups[step]) for step in taken), tuple(times[step] for step in taken)
        )


@dataclass(order=True)
class _MicroBatch:
    """A micro-batch: its work (ms), the sequences of each length, and its padded tokens."""

    load_ms: float
    place: int
    sequences: dict[int, int] = field(default_factory=dict, compare=False)
    tokens: int = field(default=0, compare=False)

    def add(self, length: int, work_ms: float, padded: int) -> None:
        """Add a sequence of a length, by its place."""
        self.sequences[length] = self.sequences.get(length, 0) + 1
        self.load_ms += work_ms
        self.tokens += padded
