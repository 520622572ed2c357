"""From a solution of the exact model to a placement: formed micro-batches at their real times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from seqplan.planner.exact.instance import Instance
from seqplan.planner.exact.model import ExactSolution
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import FillTables
from seqplan.planner.placement.fleet import Bin, PipelineBins, PipelineClass
from seqplan.planner.placement.greedy import estimate_ms
from seqplan.planner.placement.ordered_times import put_in_order
from seqplan.planner.placement.pack import pack


def placement_of(instance: Instance, answer: ExactSolution) -> Filling | None:
    """Place the sequences of a solution, then negligible ones for the earliest end.

    None if it has no solution, or a negligible sequence fits no pipeline.
    """
    if answer.pipeline is None:
        return None
    pipelines = instance.fleet.pipelines
    members: list[list[int]] = [[] for _ in pipelines]
    formed: list[dict[int, list[int]]] = [{} for _ in pipelines]
    for i, p, j in zip(instance.sequences, answer.pipeline, answer.micro_batch, strict=True):
        members[p].append(i)
        if j is not None:
            formed[p].setdefault(j, []).append(i)
    unformed = [len(members[p]) - sum(map(len, formed[p].values())) for p in range(len(pipelines))]
    extra = _assign_negligible(instance, members)
    if extra is None:
        return None
    timed: list[tuple[float, PipelineBins]] = []
    for p, pipeline_class in enumerate(pipelines):
        options = [_pack(instance, pipeline_class, members[p] + extra[p])]
        if formed[p] and not unformed[p] and not extra[p]:
            options.append(tuple(_bin(micro) for micro in formed[p].values()))
        in_order = [_put_in_order(instance, pipeline_class, bins) for bins in options]
        timed.append(min(in_order, key=lambda option: option[0]))
    placements, times, first = [], [], 0
    for pipeline_class in instance.fleet.classes:
        of_class = timed[first : first + pipeline_class.count]
        placements.append(tuple(bins for _, bins in of_class))
        times.append(tuple(time_ms for time_ms, _ in of_class))
        first += pipeline_class.count
    return Filling(tuple(placements), tuple(times))


def _assign_negligible(instance: Instance, members: list[list[int]]) -> list[list[int]] | None:
    """Give each negligible sequence, longest first, to the pipeline that then ends first."""
    pipelines = instance.fleet.pipelines
    distinct = instance.batch.distinct.tolist()
    extra: list[list[int]] = [[] for _ in pipelines]
    if not instance.negligible.any():
        return extra
    work = [0.0] * len(pipelines)
    tokens = [0] * len(pipelines)
    largest = [0.0] * len(pipelines)
    for p, pipeline_class in enumerate(pipelines):
        for i in members[p]:
            work_ms = _work_ms(pipeline_class, distinct[i])
            work[p] += work_ms
            tokens[p] += pipeline_class.pad(distinct[i])
            largest[p] = max(largest[p], work_ms)

    def time_with(p: int, length: int) -> float:
        pipeline_class = pipelines[p]
        work_ms = _work_ms(pipeline_class, length)
        count = -(-(tokens[p] + pipeline_class.pad(length)) // pipeline_class.capacity)
        peak = max(largest[p], work_ms, (work[p] + work_ms) / count)
        overheads = (count + pipeline_class.pp - 1) * pipeline_class.c
        return work[p] + work_ms + overheads + (pipeline_class.pp - 1) * peak

    for i in np.repeat(np.arange(len(distinct)), instance.negligible).tolist():
        length = distinct[i]
        holding = [p for p, k in enumerate(pipelines) if k.pad(length) <= k.capacity]
        if not holding:
            return None
        p = min(holding, key=lambda p: (time_with(p, length), p))
        work_ms = _work_ms(pipelines[p], length)
        work[p] += work_ms
        tokens[p] += pipelines[p].pad(length)
        largest[p] = max(largest[p], work_ms)
        extra[p].append(i)
    return extra


def _pack(instance: Instance, pipeline_class: PipelineClass, indices: list[int]) -> PipelineBins:
    """Pack a pipeline's sequences, given by their distinct lengths."""
    packing = pack(pipeline_class, [int(instance.batch.distinct[i]) for i in indices])
    return tuple(_bin(indices[j] for j in micro) for micro in packing.micro_batches)


def _bin(indices: Iterable[int]) -> Bin:
    return sorted(Counter(indices).items())


def _work_ms(pipeline_class: PipelineClass, length: int) -> float:
    return length * (pipeline_class.a * length + pipeline_class.b)


def _put_in_order(
    instance: Instance, pipeline_class: PipelineClass, bins: PipelineBins
) -> tuple[float, PipelineBins]:
    """Return the time of micro-batches (ms), with stages as simulated, and their best order."""
    costs = FillTables.from_batch(instance.batch).find_costs(pipeline_class)
    filling = Filling(((bins,),), ((estimate_ms(costs, bins),),))
    ordered = put_in_order([costs], filling)
    return ordered.objective_ms, ordered.bins[0][0]
