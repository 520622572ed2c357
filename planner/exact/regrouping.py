"""The flow for groups that regroup: blocks of ranks as pipelines, exact model, a better placement.

On aligned blocks whose sizes divide one another, large groups may run first without any loss.
"""

from __future__ import annotations

from dataclasses import replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.exact.close_gap import EXACT_GAP
from seqplan.planner.exact.instance import Instance
from seqplan.planner.exact.model import DETERMINISTIC_LIMIT, solve
from seqplan.planner.exact.shared_ranks import SharedRanks
from seqplan.planner.placement.fleet import Fleet, PipelineBins
from seqplan.planner.strategies.regrouping import Regrouping, RegroupLayout, Run
from seqplan.plans.scheme import Strategy


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
    blocks = _Blocks(layout, gpus)
    if blocks.ranks.limit() is None:
        return None, bound_ms
    instance = Instance.from_batch(blocks.ranks.fleet, batch, time_ms)
    if instance is None:
        return None, bound_ms
    answer = solve(instance, bound_ms, limit, blocks.ranks.paths)
    bins = blocks.ranks.place(instance, answer)
    found = None if bins is None else blocks.list_runs(bins, batch.distinct.tolist())
    proven_ms = max(bound_ms, min(answer.bound_ms, time_ms))
    if found is None or found.objective_ms >= time_ms:
        return None, proven_ms
    return found, min(proven_ms, found.objective_ms)


class _Blocks:
    """Each aligned block, with each scheme and mode of its size, as a pipeline.

    ``first``: the first rank of each; ``ranks``: those that hold a place of the fewest GPUs.
    """

    def __init__(self, layout: RegroupLayout, gpus: int) -> None:
        classes = []
        self.first: list[int] = []
        self._class_index: list[int] = []
        for k, pipeline_class in enumerate(layout.classes):
            count = gpus // pipeline_class.gpus
            if count:
                classes.append(replace(pipeline_class, count=count))
                self.first += range(0, count * pipeline_class.gpus, pipeline_class.gpus)
                self._class_index += [k] * count
        counts = {scheme: gpus // scheme.gpus for scheme in layout.schemes if scheme.gpus <= gpus}
        fleet = Fleet(Strategy.from_counts(counts), tuple(classes))
        smallest = min(k.gpus for k in classes)
        paths = (
            tuple(
                p
                for p, k in enumerate(fleet.pipelines)
                if self.first[p] <= place * smallest < self.first[p] + k.gpus
            )
            for place in range(gpus // smallest)
        )
        self.ranks = SharedRanks(fleet, tuple(paths))

    def list_runs(self, bins: list[PipelineBins], distinct: list[int]) -> Regrouping:
        """List the sequences of each block: the largest first, each when its last rank is free."""
        pipelines = self.ranks.fleet.pipelines
        ready = [0.0] * (len(self.ranks.paths) * min(k.gpus for k in pipelines))
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
