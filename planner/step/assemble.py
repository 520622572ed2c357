"""From a placement to the plan: ranks, micro-batches in order, times in whole microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.assembly import floor_us, gap, plan_of, plan_pipeline
from seqplan.planner.placement.even_chunks import chunk
from seqplan.planner.placement.fleet import Bin, ClassMode, PipelineClass
from seqplan.planner.placement.pack import pack
from seqplan.planner.problem import PACKINGS
from seqplan.planner.simulation.one_f_one_b import ForwardFraction
from seqplan.planner.step.selection import Selected
from seqplan.plans.plan import Considered, Plan, Provenance
from seqplan.plans.scheme import Strategy


def assemble(
    batch: Batch,
    selected: Selected,
    planner: Provenance,
    world_size: int,
    forward_fraction: ForwardFraction,
    packing: str = PACKINGS[0],
    layout_bound_ms: float | None = None,
) -> Plan:
    """Make the plan of a selected placement; pipelines take consecutive ranks in placement order.

    ``packing`` "even": at pp = 1, where only the number of micro-batches costs time, the same
    number of consecutive chunks of the sorted sequences with the least largest (FlexSP Eq. 23–24),
    so that no micro-batch needs more memory than it must.
    """
    strategy = selected.placement.fleet.strategy
    classes = selected.placement.fleet.pipelines
    shares = _shorten_slowest(batch, selected, _deal(batch, selected))
    pipelines = []
    first = 0
    for scheme, pipeline_class, micro_batches in zip(strategy, classes, shares, strict=True):
        ranks = tuple(range(first, first + scheme.gpus))
        first += scheme.gpus
        if pipeline_class.pp == 1 and packing == "even" and micro_batches:
            micro_batches = cut_evenly(pipeline_class, micro_batches, batch.lengths)
        pipelines.append(
            plan_pipeline(
                scheme,
                pipeline_class,
                ranks,
                micro_batches,
                batch,
                forward_fraction=forward_fraction,
            )
        )
    predicted = max(pipeline.predicted_ms for pipeline in pipelines)
    bound = min(floor_us(max(selected.lower_bound_ms, layout_bound_ms or 0.0)), predicted)
    candidates = list_candidates(selected.considered, strategy, predicted, bound)
    return plan_of(
        batch,
        planner,
        world_size,
        pipelines,
        predicted_ms=predicted,
        bound_ms=bound,
        selection=candidates,
        sync_ms=next((c.sync_ms for c in candidates if c.strategy == strategy), None),
        layout_bound_ms=layout_bound_ms,
    )


def with_bound(plan: Plan, bound_ms: float) -> Plan:
    """Return the plan with this lower bound (ms) if it is above the plan's."""
    bound = min(max(floor_us(bound_ms), plan.lower_bound_ms), plan.predicted_ms)
    return replace(
        plan,
        lower_bound_ms=bound,
        gap=gap(plan.predicted_ms, bound),
        selection=list_candidates(plan.selection, plan.strategy, plan.predicted_ms, bound),
    )


def list_candidates(
    candidates: Sequence[Considered], chosen: Strategy, predicted_ms: float, bound_ms: float
) -> tuple[Considered, ...]:
    """List the step's candidates for the plan; the chosen one has the plan's figures."""
    rows = []
    for candidate in candidates:
        if candidate.strategy == chosen:
            rows.append(Considered(chosen, bound_ms, predicted_ms, candidate.sync_ms))
            continue
        time = None if candidate.predicted_ms is None else round(candidate.predicted_ms, 3)
        low = floor_us(candidate.lower_bound_ms)
        low = low if time is None else min(low, time)
        rows.append(Considered(candidate.strategy, low, time, candidate.sync_ms))
    return tuple(rows)


def _deal(batch: Batch, selected: Selected) -> list[list[list[int]]]:
    """Deal positions in the batch to pipelines and micro-batches, as bins only count lengths."""
    pools = [iter(positions) for positions in batch.positions]

    def micro(bin_: Bin) -> list[int]:
        return [next(pools[i]) for i, n in bin_ for _ in range(n)]

    return [
        [micro(bin_) for bin_ in pipeline]
        for pipelines in selected.placement.filling.bins
        for pipeline in pipelines
    ]


def _shorten_slowest(
    batch: Batch, selected: Selected, shares: list[list[list[int]]]
) -> list[list[list[int]]]:
    """Pack pipelines of several stages anew, slowest first, until one stays the slowest.

    Only their times fall by that: of one stage the number of micro-batches alone costs time, and it
    is the least already. What ends before the slowest is left as it is.
    """
    times = [time for times in selected.placement.filling.pipeline_ms for time in times]
    classes = selected.placement.fleet.pipelines
    shares = list(shares)
    slowest = selected.lower_bound_ms
    for i in sorted(range(len(times)), key=lambda i: (-times[i], i)):
        if times[i] <= slowest:
            break
        if classes[i].pp == 1 or classes[i].modes:
            slowest = times[i]
            continue
        shares[i], time = _repack(classes[i], shares[i], batch.lengths, times[i])
        slowest = max(slowest, time)
    return shares


def _repack(
    pipeline_class: PipelineClass,
    micro_batches: list[list[int]],
    lengths: Sequence[int],
    time_ms: float,
) -> tuple[list[list[int]], float]:
    """Pack the same sequences into better micro-batches, if packing them anew finds any; with
    the time that they take."""
    positions = [i for micro in micro_batches for i in micro]
    packing = pack(pipeline_class, [lengths[i] for i in positions])
    if packing.objective_ms >= time_ms:
        return micro_batches, time_ms
    return [[positions[j] for j in micro] for micro in packing.micro_batches], packing.objective_ms


def cut_evenly(
    pipeline_class: PipelineClass, micro_batches: list[list[int]], lengths: Sequence[int]
) -> list[list[int]]:
    """Cut the same sequences into as many consecutive chunks; unchanged where those do not fit."""
    by_mode: dict[ClassMode, list[list[int]]] = {}
    for micro in micro_batches:
        mode = pipeline_class.choose_mode([lengths[i] for i in micro])
        by_mode.setdefault(mode, []).append(micro)
    # Within a mode: a long sequence would else need a mode that recomputes more for short ones.
    return [
        micro
        for mode, of_mode in by_mode.items()
        for micro in _cut(pipeline_class, mode, of_mode, lengths)
    ]


def _cut(
    pipeline_class: PipelineClass,
    mode: ClassMode,
    micro_batches: list[list[int]],
    lengths: Sequence[int],
) -> list[list[int]]:
    """Cut sequences into as many consecutive chunks; unchanged if a mode does not hold them."""
    positions = [i for micro in micro_batches for i in micro]
    padded = [pipeline_class.pad(lengths[i]) for i in positions]
    chunks = chunk(padded, len(micro_batches))
    if max(sum(padded[j] for j in part) for part in chunks) > mode.capacity:
        return micro_batches
    return [[positions[j] for j in part] for part in chunks]
