"""Exhaustive optima of tiny instances, against which searches and bounds are held.

Of the estimates that searches minimize, or with ``least`` of what no order of the micro-batches in
1F1B ends before: bounds are of that.

Sequences of equal length are interchangeable, so a set of sequences is a vector of counts per
distinct length, kept as one mixed-radix number: a part of a set is then a smaller number, and what
is left of the set is the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.bubbles import Bubbles
from seqplan.planner.placement.fleet import PipelineClass


@dataclass(frozen=True)
class Subsets:
    """All sets of a batch's sequences."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, batch: Batch) -> Subsets:
        return cls(tuple(batch.distinct.tolist()), tuple(batch.multiplicity.tolist()))

    @cached_property
    def vectors(self) -> list[tuple[int, ...]]:
        """The counts of each set, by its number; the first is empty, the last is the batch."""
        reversed_ranges = [range(n + 1) for n in self.counts[::-1]]
        return [vector[::-1] for vector in itertools.product(*reversed_ranges)]

    @cached_property
    def parts(self) -> list[list[int]]:
        """For each set, the numbers of its parts, itself and the empty one included."""
        radix = [1]
        for n in self.counts:
            radix.append(radix[-1] * (n + 1))
        return [
            [
                sum(map(int.__mul__, part, radix))
                for part in itertools.product(*(range(n + 1) for n in vector))
            ]
            for vector in self.vectors
        ]


def pipeline_optima(pipeline: PipelineClass, sets: Subsets, *, least: bool = False) -> list[float]:
    """Least time of one pipeline for each set; inf where a sequence exceeds MaxLen, 0 for none.

    For each number of micro-batches, the pairs (sum of the costs, largest cost) are kept that no
    other pair dominates.
    """
    costs = [inf] * len(sets.vectors)
    for mode in pipeline.all_modes:
        work, padded = _totals(replace(pipeline, a=mode.a, b=mode.b, c=mode.c, modes=()), sets)
        costs = [
            min(cost, ms + mode.c) if tokens <= mode.capacity else cost
            for cost, ms, tokens in zip(costs, work, padded, strict=True)
        ]
    frontier: list[dict[int, list[tuple[float, float]]]] = [{0: [(0.0, 0.0)]}]
    for number, vector in enumerate(sets.vectors[1:], 1):
        first = next(i for i, n in enumerate(vector) if n)
        pairs: dict[int, set[tuple[float, float]]] = {}
        for part in sets.parts[number]:
            if part and sets.vectors[part][first] and costs[part] < inf:
                for v, others in frontier[number - part].items():
                    pairs.setdefault(v + 1, set()).update(
                        (total + costs[part], max(largest, costs[part]))
                        for total, largest in others
                    )
        frontier.append({v: _undominated(of_v) for v, of_v in pairs.items()})
    return [
        min(
            (
                time_of(pipeline, v, total, largest, sum(sets.counts), least=least)
                for v, pairs in of_set.items()
                for total, largest in pairs
            ),
            default=inf,
        )
        for of_set in frontier
    ]


def time_of(
    pipeline: PipelineClass,
    micro_batches: int,
    total: float,
    largest: float,
    sequences: int,
    *,
    least: bool,
) -> float:
    """The estimate of micro-batches, or what no order of them ends before (ms).

    ``sequences``: of the batch.
    """
    if pipeline.pp == 1 or not micro_batches:
        return total
    if not least:
        bubbles = Bubbles.from_forward(pipeline.pp, pipeline.forward_fraction, sequences)
        return max(total + bubbles.of(micro_batches) * largest, pipeline.pp * largest)
    of_mean, of_largest = (float(of[micro_batches - 1]) for of in pipeline.bubbles_by_number)
    idle = max(of_largest * largest, of_mean * total / micro_batches)
    return max(total + idle, pipeline.pp * largest)


def _undominated(pairs: set[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for pair in sorted(pairs):
        if not kept or pair[1] < kept[-1][1]:
            kept.append(pair)
    return kept


def step_optimum(classes: Sequence[PipelineClass], batch: Batch, *, least: bool = False) -> float:
    """Least slowest pipeline (ms) of a strategy; inf when the batch does not fit."""
    sets = Subsets.of(batch)
    best = [0.0] + [inf] * (len(sets.vectors) - 1)
    for pipeline in classes:
        alone = pipeline_optima(pipeline, sets, least=least)
        for _ in range(pipeline.count):
            best = _add_pipeline(best, alone, sets)
    return best[-1]


def any_strategy_optimum(
    classes: Sequence[PipelineClass], batch: Batch, gpus: int, *, least: bool = False
) -> float:
    """Least slowest pipeline (ms) over all strategies of these classes on ``gpus`` GPUs."""
    sets = Subsets.of(batch)
    alone = [pipeline_optima(pipeline, sets, least=least) for pipeline in classes]
    nothing = [0.0] + [inf] * (len(sets.vectors) - 1)
    best: list[list[float]] = []
    for n in range(gpus + 1):
        at = nothing if n == 0 else best[n - 1]
        for pipeline, optima in zip(classes, alone, strict=True):
            if pipeline.gpus <= n:
                at = list(map(min, at, _add_pipeline(best[n - pipeline.gpus], optima, sets)))
        best.append(at)
    return best[gpus][-1]


def literal_optimum(
    classes: Sequence[PipelineClass], batch: Batch, *, least: bool = False
) -> float:
    """``step_optimum`` by plain enumeration: every assignment, every set partition."""
    pipelines = [pipeline for pipeline in classes for _ in range(pipeline.count)]
    best = inf
    for choice in itertools.product(range(len(pipelines)), repeat=len(batch.lengths)):
        times = []
        for p, pipeline in enumerate(pipelines):
            mine = [n for n, q in zip(batch.lengths, choice, strict=True) if p == q]
            times.append(
                min(_packing_times(pipeline, mine, len(batch.lengths), least), default=inf)
            )
        best = min(best, max(times))
    return best


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to split ``items`` into non-empty groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [items[0], *rest[i]], *rest[i + 1 :]]


def _packing_times(
    pipeline: PipelineClass, lengths: Sequence[int], sequences: int, least: bool
) -> Iterator[float]:
    for micro_batches in partitions(lengths):
        if all(
            sum(-(-n // pipeline.unit) * pipeline.unit for n in micro) <= pipeline.capacity
            for micro in micro_batches
        ):
            costs = [
                min(
                    sum(mode.a * n * n + mode.b * n for n in m) + mode.c
                    for mode in pipeline.all_modes
                    if sum(-(-n // pipeline.unit) * pipeline.unit for n in m) <= mode.capacity
                )
                for m in micro_batches
            ]
            of_largest = len(costs), sum(costs), max(costs, default=0.0)
            yield time_of(pipeline, *of_largest, sequences, least=least)


def _totals(pipeline: PipelineClass, sets: Subsets) -> tuple[list[float], list[int]]:
    """Work (ms) and padded tokens of each set."""
    work = [n * (pipeline.a * n + pipeline.b) for n in sets.lengths]
    padded = [-(-n // pipeline.unit) * pipeline.unit for n in sets.lengths]
    return (
        [sum(map(float.__mul__, work, map(float, vector))) for vector in sets.vectors],
        [sum(map(int.__mul__, padded, vector)) for vector in sets.vectors],
    )


def _add_pipeline(best: list[float], alone: list[float], sets: Subsets) -> list[float]:
    """Least slowest pipeline per set when a further pipeline takes some part of it."""
    return [
        min(max(alone[part], best[number - part]) for part in parts)
        for number, parts in enumerate(sets.parts)
    ]
