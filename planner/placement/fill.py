"""Target fill: place every sequence so that every pipeline ends by a target, or report failure.

This is the inner loop of the step's search and is therefore plain Python over plain numbers:
sequences are few (hundreds to thousands) and every placement depends on the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import (
    _ROUND,
    Bin,
    ClassPlacement,
    Fleet,
    Floats,
    PipelineClass,
    form_s,
    longest_alone,
)
from seqplan.planner.placement.sequence_pool import SequencePool
from seqplan.plans.scheme import Strategy


@dataclass(frozen=True)
class Filling:
    """A complete placement: per class, per pipeline, its micro-batches; and form S of each."""

    bins: tuple[ClassPlacement, ...]
    pipeline_ms: tuple[tuple[float, ...], ...]

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
        self.negated = [-length for length in self.lengths]
        self.counts: list[int] = batch.multiplicity.tolist()
        self.sequences = len(batch.lengths)
        self._distinct = batch.distinct
        self._works: dict[PipelineClass, Floats] = {}

    def fill(
        self, target_ms: float, ceiling_ms: float | None = None, *, new_first: bool = False
    ) -> Filling | Shortfall:
        """Place all sequences with every pipeline's form S ≤ ``target_ms``, or say what is missing.

        1. Classes are ordered from the one that can hold the longest sequence down.
        2. Of each class, pipelines are opened for the sequences that no later class can hold.
        3. Then they, and new ones, are topped up with any: always the longest unassigned sequence
           that fits what is left of the micro-batch (tokens and time), micro-batch after
           micro-batch. ``new_first``: pipelines of step 2 open new micro-batches for the longest
           that are left before they top up the open ones, which may have little room.

        ``ceiling_ms`` ≥ target: a pipeline whose first sequence alone needs more than the target
        may take up to as long as that sequence needs, but no longer than the ceiling; so that one
        long sequence does not loosen the other pipelines.
        Complexity: O(placements · log n) and O(n) set-up.
        """
        ceiling = target_ms if ceiling_ms is None else ceiling_ms
        classes = self.fleet.classes
        pool = SequencePool(self.lengths, self.counts, self.sequences, self.negated)
        reach = [
            min(pipeline_class.capacity, longest_alone(pipeline_class, ceiling))
            for pipeline_class in classes
        ]
        order = sorted(range(len(classes)), key=lambda k: (-reach[k], k))
        bins: list[ClassPlacement] = [()] * len(classes)
        for k, later in zip(order, [*order[1:], None], strict=True):
            pipeline_class = classes[k]
            forced_above = 0 if later is None else reach[later]
            if later is None and ceiling == target_ms:
                # Whether what is left cannot fit the last class, however well it is placed.
                missing = self._missing_ms(pool, pipeline_class)
                missing -= target_ms * pipeline_class.count
                if missing > 0:
                    return Shortfall(missing * pipeline_class.gpus)
            opened: list[_Pipeline] = []
            for _ in range(pipeline_class.count):
                first = pool.longest(reach[k])
                if first is None or pool.lengths[first] <= forced_above:
                    break
                pipeline = _open(pipeline_class, pool.lengths[first], target_ms, ceiling)
                pipeline.fill(pool, forced_above)
                opened.append(pipeline)
            for place in range(pipeline_class.count):
                if place == len(opened):
                    first = pool.longest(reach[k])
                    if first is None:
                        break
                    opened.append(_open(pipeline_class, pool.lengths[first], target_ms, ceiling))
                opened[place].fill(pool, 0, new_first)
            bins[k] = tuple(tuple(pipeline.bins) for pipeline in opened)
            bins[k] += ((),) * (pipeline_class.count - len(opened))
        if pool.left:
            last = classes[order[-1]]
            return Shortfall(self._missing_ms(pool, last) * last.gpus)
        times = tuple(
            tuple(form_s(pipeline_class, self.lengths, pipeline) for pipeline in pipelines)
            for pipeline_class, pipelines in zip(classes, bins, strict=True)
        )
        return Filling(tuple(bins), times)

    def _missing_ms(self, pool: SequencePool, pipeline_class: PipelineClass) -> float:
        """Add up the work of all that is unassigned, on pipelines of a class (ms).

        At pp = 1 tokens also cost their share of the micro-batches' overhead.
        """
        counts = np.array(pool.counts, dtype=np.float64)
        return float(self._work(pipeline_class) @ counts) * (1 - 1e-9)

    def _work(self, pipeline_class: PipelineClass) -> Floats:
        if pipeline_class not in self._works:
            one_stage = pipeline_class.pp == 1
            work = pipeline_class.work_with_overhead_ms if one_stage else pipeline_class.work_ms
            self._works[pipeline_class] = work(self._distinct)
        return self._works[pipeline_class]


@dataclass
class _Pipeline:
    """A pipeline being filled: its micro-batches with their work (ms) and the tokens left.

    ``budget``: ms left for work and micro-batches' overhead, shared by all of them; ``cap``: the
    most work of one micro-batch, for which the pipeline's bubbles have been paid already.
    """

    pipeline_class: PipelineClass
    budget: float
    cap: float
    bins: list[Bin] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def fill(self, pool: SequencePool, above: int, new_first: bool = False) -> None:
        """Take sequences longer than ``above``, into open micro-batches and then new ones.

        ``new_first``: the other way round.
        """
        if new_first:
            already_open = len(self.bins)
            self._add(pool, above)
            self._top_up(pool, above, already_open)
        else:
            self._top_up(pool, above, len(self.bins))
            self._add(pool, above)

    def _top_up(self, pool: SequencePool, above: int, already_open: int) -> None:
        pipeline_class = self.pipeline_class
        for j, micro in enumerate(self.bins[:already_open]):
            room = min(self.budget, self.cap - self.work[j])
            left, self.tokens[j] = pool.top_up(pipeline_class, micro, room, self.tokens[j], above)
            self.budget -= room - left
            self.work[j] += room - left

    def _add(self, pool: SequencePool, above: int) -> None:
        pipeline_class = self.pipeline_class
        while pool.left:
            new: Bin = []
            room = min(self.budget - pipeline_class.c, self.cap)
            left, tokens = pool.top_up(pipeline_class, new, room, pipeline_class.capacity, above)
            if not new:
                break
            self.bins.append(new)
            self.work.append(room - left)
            self.tokens.append(tokens)
            self.budget -= room - left + pipeline_class.c


def _open(pipeline_class: PipelineClass, longest: int, target: float, ceiling: float) -> _Pipeline:
    """Open an empty pipeline whose first sequence will have ``longest`` tokens.

    Several stages: either V even micro-batches, V with the most capacity that leaves each of them
    the work of that sequence; or, where that holds more, a first micro-batch of that sequence alone
    which then sets the bubbles, and no other larger.
    """
    work = longest * (pipeline_class.a * longest + pipeline_class.b)
    budget = min(max(target, pipeline_class.pp * (work + pipeline_class.c)), ceiling) * _ROUND
    if pipeline_class.pp == 1:
        return _Pipeline(pipeline_class, budget, inf)
    bubbles = pipeline_class.pp - 1
    token_work = pipeline_class.capacity * (pipeline_class.a * longest + pipeline_class.b)
    most = max(int(budget / (work + pipeline_class.c)) - bubbles, 1)
    best, micro_batches = -1.0, 1
    for v in range(1, most + 1):
        capacity = v * min(budget / (v + bubbles) - pipeline_class.c, token_work)
        if capacity <= best:
            break  # concave in v: past its maximum
        best, micro_batches = capacity, v
    left = budget - bubbles * (work * _ROUND + pipeline_class.c)
    peaked = left - pipeline_class.c * max(
        ceil(left / (work + pipeline_class.c)), ceil(left / (token_work + pipeline_class.c))
    )
    if micro_batches == most and peaked > best:
        return _Pipeline(pipeline_class, left, work * _ROUND)
    even_work = budget / (micro_batches + bubbles) - pipeline_class.c
    return _Pipeline(pipeline_class, micro_batches * (even_work + pipeline_class.c), even_work)
