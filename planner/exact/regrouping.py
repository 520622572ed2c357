"""The flow for groups that regroup: blocks of ranks as pipelines, exact model, a better placement.

On aligned blocks whose sizes divide one another, large groups may run first without any loss: what
a rank runs takes the sum of its blocks' times in any order. So a placement ends by T exactly if the
times of the blocks that hold a rank, the largest to the smallest, sum to at most T for each rank.
"""

from __future__ import annotations

from collections import Counter

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exact.close_gap import EXACT_GAP
from seqplan.planner.exact.instance import Instance
from seqplan.planner.exact.model import DETERMINISTIC_LIMIT, ExactSolution, solve
from seqplan.planner.placement.fleet import Bin, Fleet, PipelineClass
from seqplan.planner.placement.pack import pack
from seqplan.planner.strategies.regrouping import Regrouping, RegroupLayout, Run
from seqplan.plans.scheme import Strategy

MOST_BLOCKS = 64
"""Blocks, each with each of its schemes, of a cluster that is solved."""


def close_regrouping_gap(
    layout: RegroupLayout,
    batch: Batch,
    gpus: int,
    time_ms: float,
    bound_ms: float,
    limit: float = DETERMINISTIC_LIMIT,
) -> tuple[Regrouping | None, float]:
    """Return a placement that ends before ``time_ms`` or None, and a bound (ms).

    The bound holds for all placements on aligned blocks. None and ``bound_ms`` if the gap is at
    most ``EXACT_GAP``, or if too many sequences or blocks matter.
    """
    if time_ms <= bound_ms * (1 + EXACT_GAP):
        return None, bound_ms
    if len(set(layout.schemes)) < len(layout.schemes):  # several recomputation modes of a scheme
        return None, bound_ms
    blocks = _Blocks(layout, gpus)
    if len(blocks.first) > MOST_BLOCKS:
        return None, bound_ms
    instance = Instance.from_batch(blocks.fleet, batch, time_ms)
    if instance is None:
        return None, bound_ms
    answer = solve(instance, bound_ms, limit, blocks.paths)
    found = blocks.placement(instance, answer)
    proven_ms = max(bound_ms, min(answer.bound_ms, time_ms))
    if found is None or found.objective_ms >= time_ms:
        return None, proven_ms
    return found, min(proven_ms, found.objective_ms)


class _Blocks:
    """Each aligned block with each scheme of its size as a pipeline of a fleet.

    ``first``: the first rank of each; ``paths``: those that hold a place of the fewest GPUs.
    """

    def __init__(self, layout: RegroupLayout, gpus: int) -> None:
        counts = {scheme: gpus // scheme.gpus for scheme in layout.schemes if scheme.gpus <= gpus}
        strategy = Strategy.from_counts(counts)
        self._layout = layout
        by_scheme = dict(zip(layout.schemes, layout.classes, strict=True))
        classes: list[PipelineClass] = []
        self.first: list[int] = []
        self._class_index: list[int] = []
        for scheme, count in strategy.counts:
            k = by_scheme[scheme]
            classes.append(PipelineClass(k.pp, k.a, k.b, k.c, k.capacity, k.unit, count, k.gpus))
            self.first += range(0, count * scheme.gpus, scheme.gpus)
            self._class_index += [layout.schemes.index(scheme)] * count
        self.fleet = Fleet(strategy, tuple(classes))
        smallest = min(k.gpus for k in classes)
        pipelines = self.fleet.pipelines
        self.paths = [
            [
                p
                for p, k in enumerate(pipelines)
                if self.first[p] <= place * smallest < self.first[p] + k.gpus
            ]
            for place in range(gpus // smallest)
        ]

    def placement(self, instance: Instance, answer: ExactSolution) -> Regrouping | None:
        """Place sequences as the answer has them, negligible ones where their ranks end first."""
        if answer.pipeline is None:
            return None
        pipelines = self.fleet.pipelines
        distinct = instance.batch.distinct.tolist()
        members: list[list[int]] = [[] for _ in pipelines]
        for i, p in zip(instance.sequences, answer.pipeline, strict=True):
            members[p].append(i)
        for i, number in enumerate(instance.negligible.tolist()):
            for _ in range(number):
                block = self._ending_first(members, distinct, i)
                if block is None:
                    return None
                members[block].append(i)
        bins = [
            _pack(k, distinct, part) if part else ()
            for k, part in zip(pipelines, members, strict=True)
        ]
        return self._runs(bins, distinct)

    def _ending_first(self, members: list[list[int]], distinct: list[int], i: int) -> int | None:
        """Choose the smallest block that holds a sequence and whose ranks have least to do."""
        pipelines = self.fleet.pipelines
        times = [_time_ms(k, distinct, part) for k, part in zip(pipelines, members, strict=True)]
        best: tuple[float, int] | None = None
        for path in self.paths:
            ranks_ms = sum(times[p] for p in path)
            for p in path:
                k = pipelines[p]
                if k.pad(distinct[i]) <= k.capacity:
                    more = _time_ms(k, distinct, [*members[p], i]) - times[p]
                    option = (ranks_ms + more * k.gpus / min(q.gpus for q in pipelines), p)
                    best = option if best is None or option < best else best
        return None if best is None else best[1]

    def _runs(self, bins: list[tuple[Bin, ...]], distinct: list[int]) -> Regrouping:
        """List the sequences of each block: the largest first, each when its last rank is free."""
        pipelines = self.fleet.pipelines
        ready = [0.0] * (len(self.paths) * min(k.gpus for k in pipelines))
        runs = []
        for p in sorted(range(len(pipelines)), key=lambda p: (-pipelines[p].gpus, p)):
            if not bins[p]:
                continue
            k, ranks = pipelines[p], range(self.first[p], self.first[p] + pipelines[p].gpus)
            start = max(ready[rank] for rank in ranks)
            runs.append(Run(self.first[p], self._class_index[p], bins[p], start))
            content = [i for micro in bins[p] for i, n in micro for _ in range(n)]
            work = sum(distinct[i] * (k.a * distinct[i] + k.b) for i in content)
            for rank in ranks:
                ready[rank] = start + work + k.c * len(bins[p])
        runs.sort(key=lambda run: run.start_ms)  # stable: a block stays before its parts
        return Regrouping(tuple(runs), max(ready))


def _pack(k: PipelineClass, distinct: list[int], part: list[int]) -> tuple[Bin, ...]:
    packing = pack(k, [distinct[i] for i in part])
    return tuple(sorted(Counter(part[j] for j in micro).items()) for micro in packing.micro_batches)


def _time_ms(k: PipelineClass, distinct: list[int], part: list[int]) -> float:
    """Time sequences on a block, with the micro-batches that their tokens need (ms)."""
    tokens = sum(k.pad(distinct[i]) for i in part)
    work = sum(distinct[i] * (k.a * distinct[i] + k.b) for i in part)
    return work + k.c * -(-tokens // k.capacity)
