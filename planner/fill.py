"""Target fill: place every sequence so that every pipeline ends by a target, or report failure.

This is the inner loop of the step's search and is therefore plain Python over plain numbers:
sequences are few (hundreds to thousands) and every placement depends on the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import sqrt

from seqplan.planner.batch import Batch
from seqplan.planner.fleet import Fleet, PipelineClass

Bin = list[tuple[int, int]]
"""One micro-batch: (index of the distinct length, how many sequences of that length)."""

_ROUND = 1.0 + 1e-12


@dataclass(frozen=True)
class Filling:
    """A complete placement: per class, per pipeline, its micro-batches; and form S of each."""

    bins: tuple[tuple[tuple[Bin, ...], ...], ...]
    pipeline_ms: tuple[tuple[float, ...], ...]

    @property
    def objective_ms(self) -> float:
        """The slowest pipeline."""
        return max(max(times) for times in self.pipeline_ms)


class Filler:
    """Fills one fleet with one batch for any number of targets."""

    def __init__(self, fleet: Fleet, batch: Batch) -> None:
        self.fleet = fleet
        self.lengths: list[int] = batch.distinct.tolist()
        self.negated = [-length for length in self.lengths]
        self.counts: list[int] = batch.multiplicity.tolist()
        self.sequences = len(batch.lengths)

    def fill(self, target_ms: float, ceiling_ms: float | None = None) -> Filling | None:
        """Place all sequences with every pipeline's form S ≤ ``target_ms``; None if it fails.

        Pipelines take, from the one that can hold the longest sequence down, the longest
        unassigned sequence that fits what is left of the micro-batch (tokens and time), micro-batch
        after micro-batch. ``ceiling_ms`` ≥ target: a pipeline whose first sequence alone needs more
        than the target may take up to as long as that sequence needs, but no longer than the
        ceiling; so that one long sequence does not loosen the other pipelines.
        Complexity: O(placements · log n) and O(n) set-up.
        """
        ceiling = target_ms if ceiling_ms is None else ceiling_ms
        classes = self.fleet.classes
        state = SequencePool(self.lengths, self.counts, self.sequences, self.negated)
        reach = [min(item.capacity, longest_alone(item, ceiling)) for item in classes]
        bins: list[tuple[tuple[Bin, ...], ...]] = [()] * len(classes)
        for k in sorted(range(len(classes)), key=lambda k: (-reach[k], k)):
            item = classes[k]
            bins[k] = tuple(
                state.fill_pipeline(item, target_ms, ceiling, reach[k]) if state.left else ()
                for _ in range(item.count)
            )
        if state.left:
            return None
        times = tuple(
            tuple(form_s(item, self.lengths, pipeline) for pipeline in pipelines)
            for item, pipelines in zip(classes, bins, strict=True)
        )
        return Filling(tuple(bins), times)


def form_s(item: PipelineClass, lengths: list[int], pipeline: tuple[Bin, ...]) -> float:
    """Σ(m_j + c) + (pp − 1)·(max m_j + c) of a pipeline's micro-batches, 0 when empty."""
    a, b, c = item.a, item.b, item.c
    costs = [
        c + sum(n * (lengths[i] * (a * lengths[i] + b)) for i, n in micro) for micro in pipeline
    ]
    return sum(costs) + (item.pp - 1) * max(costs) if costs else 0.0


def longest_alone(item: PipelineClass, target_ms: float) -> int:
    """The longest sequence (tokens) that alone ends by the target."""
    work = target_ms * _ROUND / item.pp - item.c
    if work <= 0:
        return 0
    return int(2 * work / (item.b + sqrt(item.b * item.b + 4 * item.a * work)) * _ROUND)


class SequencePool:
    """The unassigned sequences: how many of each distinct length, with links over spent ones."""

    __slots__ = ("counts", "left", "lengths", "negated", "next")

    def __init__(
        self, lengths: list[int], counts: list[int], n: int, negated: list[int] | None = None
    ) -> None:
        self.lengths = lengths
        self.negated = [-length for length in lengths] if negated is None else negated
        self.counts = counts.copy()
        self.next = list(range(len(lengths) + 1))
        self.left = n

    def copy(self) -> SequencePool:
        """The same sequences unassigned."""
        twin = SequencePool(self.lengths, self.counts, self.left, self.negated)
        twin.next = self.next.copy()
        return twin

    def longest(self, limit: float) -> int | None:
        """Index of the longest unassigned length ≤ ``limit``."""
        links = self.next
        i = bisect_left(self.negated, -limit)
        while links[i] != i:
            links[i] = links[links[i]]
            i = links[i]
        return i if i < len(self.lengths) else None

    def fill_pipeline(
        self, item: PipelineClass, target: float, ceiling: float, reach: int
    ) -> tuple[Bin, ...]:
        """Fill one pipeline; its micro-batches, none when nothing unassigned fits."""
        first = self.longest(reach)
        if first is None:
            return ()
        length = self.lengths[first]
        alone = item.pp * (length * (item.a * length + item.b) + item.c)
        budget = min(max(target, alone), ceiling) * _ROUND
        if item.pp == 1:
            return self._fill_serial(item, budget)
        return self._fill_staged(item, budget, length)

    def _fill_serial(self, item: PipelineClass, budget: float) -> tuple[Bin, ...]:
        """One stage: micro-batches share one time budget, each pays c."""
        bins: list[Bin] = []
        while self.left:
            budget -= item.c
            micro, budget = self.fill_bin(item, budget)
            if not micro:
                break
            bins.append(micro)
        return tuple(bins)

    def _fill_staged(self, item: PipelineClass, budget: float, longest: int) -> tuple[Bin, ...]:
        """Several stages: V micro-batches of equal budget; V by capacity, as the longest allows."""
        work = longest * (item.a * longest + item.b)
        bubbles = item.pp - 1
        most = int(budget / (work + item.c)) - bubbles
        token_work = item.capacity * (item.a * longest + item.b)
        best, micro_batches = -1.0, 1
        for v in range(1, max(most, 1) + 1):
            capacity = v * min(budget / (v + bubbles) - item.c, token_work)
            if capacity <= best:
                break  # concave in v: past its maximum
            best, micro_batches = capacity, v
        each = budget / (micro_batches + bubbles) - item.c
        bins: list[Bin] = []
        while self.left and len(bins) < micro_batches:
            micro, _ = self.fill_bin(item, each)
            if not micro:
                break
            bins.append(micro)
        return tuple(bins)

    def fill_bin(self, item: PipelineClass, work: float) -> tuple[Bin, float]:
        """Longest first into one micro-batch of ``work`` ms and its tokens; what work is left."""
        micro: Bin = []
        if work <= 0:
            return micro, work
        a, b, unit, tokens = item.a, item.b, item.unit, item.capacity
        lengths, negated, counts, links = self.lengths, self.negated, self.counts, self.next
        four_a, b_squared, end, i = 4 * a, b * b, len(self.lengths), 0
        while work > 0:
            limit = 2 * work / (b + sqrt(b_squared + four_a * work))
            i = bisect_left(negated, -(tokens if tokens < limit else limit), i)
            while links[i] != i:
                links[i] = links[links[i]]
                i = links[i]
            if i == end:
                break
            length = lengths[i]
            cost = length * (a * length + b)
            padded = length if unit == 1 else -(-length // unit) * unit
            n = counts[i]
            if n > 1:
                n = min(n, tokens // padded, int(work / cost)) or 1
            work -= n * cost
            tokens -= n * padded
            micro.append((i, n))
            self.left -= n
            counts[i] -= n
            if not counts[i]:
                links[i] = i + 1
        return micro, work
