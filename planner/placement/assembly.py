"""Plans from placements: ranks, micro-batches in order, times in whole microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.even_chunks import chunk
from seqplan.planner.placement.fill import Placement
from seqplan.planner.placement.fleet import Bin, ClassMode, PipelineClass
from seqplan.planner.problem import PACKINGS
from seqplan.planner.simulation.one_f_one_b import (
    ForwardFraction,
    order_micro_batches,
    shares_of,
    simulate_micro_batches_ms,
)
from seqplan.plans.groups import process_groups
from seqplan.plans.load import time_loads
from seqplan.plans.plan import Considered, MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.recomputation import window_share
from seqplan.plans.scheme import Scheme, Strategy
from seqplan.plans.shapes import count_added, pad_to_shape


@dataclass(frozen=True)
class Selected:
    """The chosen strategy with its placement and a proven lower bound (ms).

    Neither holds the sync: it is one constant for all placements of a strategy, and in both it
    would only make the gap look smaller. ``considered``: every candidate with its bound, and its
    time unless it was pruned. ``positions``: of the sequences, by pipeline and micro-batch, if
    sequences of one length differ.
    """

    placement: Placement
    lower_bound_ms: float
    considered: tuple[Considered, ...]
    positions: list[list[list[int]]] | None = None


def plan_of(
    batch: Batch,
    planner: Provenance,
    world_size: int,
    pipelines: Sequence[PlannedPipeline],
    predicted_ms: float,
    bound_ms: float,
    selection: tuple[Considered, ...],
    sync_ms: float | None = None,
    layout_bound_ms: float | None = None,
) -> Plan:
    """Make the plan of these pipelines; ranks in none of them are idle.

    ``bound_ms`` is raised to ``layout_bound_ms``, which holds for these pipelines too.
    """
    layout_bound = None if layout_bound_ms is None else min(floor_us(layout_bound_ms), predicted_ms)
    bound_ms = max(bound_ms, layout_bound or 0.0)
    used = {rank for pipeline in pipelines for rank in pipeline.ranks}
    return Plan(
        step=batch.step,
        provenance=planner,
        world_size=world_size,
        ids=batch.ids,
        lengths=batch.lengths,
        tokens=batch.tokens,
        loss_tokens=loss_tokens(batch),
        pipelines=tuple(pipelines),
        idle_ranks=tuple(rank for rank in range(world_size) if rank not in used),
        groups=process_groups(pipelines),
        predicted_ms=predicted_ms,
        lower_bound_ms=bound_ms,
        gap=gap(predicted_ms, bound_ms),
        selection=selection,
        sync_ms=sync_ms,
        layout_lower_bound_ms=layout_bound,
        loads=batch.loads,
    )


def plan_pipeline(
    scheme: Scheme,
    pipeline_class: PipelineClass,
    ranks: tuple[int, ...],
    micro_batches: Sequence[Sequence[int]],
    batch: Batch,
    forward_fraction: ForwardFraction,
    micro_step: int | None = None,
    slowdown: float = 1.0,
    shapes: Sequence[int] = (),
) -> PlannedPipeline:
    """Make one pipeline at the model's costs; its predicted time is 1F1B's at the stated costs.

    ``slowdown``: the factor that the costs of ``pipeline_class`` have; ``shapes``: tokens on a rank
    to which micro-batches are padded.
    """
    planned_batches = []
    for positions in micro_batches:
        lengths = [batch.lengths[i] for i in positions]
        padded = pad_to_shape(scheme, lengths, shapes)
        if padded is None:
            raise AssertionError("a pipeline holds no more than the largest shape")
        mode = pipeline_class.choose_mode(lengths, padded if shapes else None)
        more_ms = slowdown * time_loads(batch.loads, scheme, positions)
        if shapes:
            more_ms += mode.b * count_added(scheme, lengths, padded)
        planned_batches.append(
            MicroBatch(
                tuple(positions),
                sum(lengths),
                padded,
                round(mode.micro_batch_ms(lengths) + more_ms, 3),
                mode.name,
            )
        )
    order = order_micro_batches(
        [micro.cost_ms for micro in planned_batches],
        scheme.pp,
        shares_of(planned_batches, forward_fraction),
    )
    planned_batches = [planned_batches[j] for j in order]
    if scheme.pp > 1 and pipeline_class.modes:
        planned_batches = fit_windows(pipeline_class, planned_batches, batch.lengths)
    predicted = simulate_micro_batches_ms(planned_batches, scheme.pp, forward_fraction)
    return PlannedPipeline(
        scheme, ranks, tuple(planned_batches), round(predicted, 3), micro_step, slowdown
    )


def fit_windows(
    pipeline_class: PipelineClass, micro_batches: Sequence[MicroBatch], lengths: Sequence[int]
) -> list[MicroBatch]:
    """Let micro-batches keep less if those in flight together need too much.

    Those are pp in a row. Of each such window that is too full, the micro-batch that keeps the
    largest part of the memory takes the next mode, until it fits.
    """
    fitted = list(micro_batches)
    modes = {mode.name: place for place, mode in enumerate(pipeline_class.modes)}
    pp = pipeline_class.pp

    def count_kept(micro: MicroBatch) -> float:
        mode = pipeline_class.modes[modes[micro.recompute]]
        return mode.kept_share * micro.padded_tokens / mode.capacity

    for first in range(len(fitted)):
        window = range(first, min(first + pp, len(fitted)))
        while True:
            parts = [
                (micro.padded_tokens / mode.capacity, mode.kept_share)
                for micro in (fitted[j] for j in window)
                if (mode := pipeline_class.modes[modes[micro.recompute]])
            ]
            if window_share(parts, pp) <= 1:
                break
            lighter = [j for j in window if modes[fitted[j].recompute] + 1 < len(modes)]
            if not lighter:
                break
            j = max(lighter, key=lambda j: (count_kept(fitted[j]), -j))
            mode = pipeline_class.modes[modes[fitted[j].recompute] + 1]
            held = [lengths[position] for position in fitted[j].sequences]
            cost = round(mode.micro_batch_ms(held), 3)
            fitted[j] = replace(fitted[j], cost_ms=cost, recompute=mode.name)
    return fitted


def ranks_of_stages(scheme: Scheme, first: int, of_stage: int) -> tuple[int, ...]:
    """List a group's ranks from the ``first`` of each stage on; a stage has ``of_stage`` ranks."""
    return tuple(
        stage * of_stage + rank
        for stage in range(scheme.pp)
        for rank in range(first, first + scheme.stage_gpus)
    )


def loss_tokens(batch: Batch) -> int:
    """Count the labels in the step's loss: the caller's count, or tokens less one per sequence."""
    return batch.tokens - len(batch.lengths) if batch.loss_tokens is None else batch.loss_tokens


def floor_us(time_ms: float) -> float:
    """Round down to whole microseconds, so that a bound stays a bound.

    A whole number of them stays as it is.
    """
    nearest = round(float(time_ms), 3)
    return nearest if nearest <= time_ms else round(nearest - 1e-3, 3)


def gap(predicted_ms: float, bound_ms: float) -> float:
    """Return predicted / bound − 1, to six decimals; 0 if the bound is 0."""
    return round(predicted_ms / bound_ms - 1, 6) if bound_ms > 0 else 0.0


def assemble(
    batch: Batch,
    selected: Selected,
    planner: Provenance,
    world_size: int,
    forward_fraction: ForwardFraction,
    packing: str = PACKINGS[0],
    layout_bound_ms: float | None = None,
    placed: Sequence[tuple[tuple[int, ...], float]] | None = None,
    shapes: tuple[int, ...] = (),
) -> Plan:
    """Make the plan of a selected placement.

    Pipelines take consecutive ranks in placement order, or those of ``placed``, each with its
    slowdown (``Slowdown.place``). ``shapes``: as of ``plan_pipeline``.

    ``packing`` "even": at pp = 1, where only the number of micro-batches costs time, the same
    number of consecutive chunks of the sorted sequences with the least largest (FlexSP Eq. 23–24),
    so that no micro-batch needs more memory than it must.
    """
    strategy = selected.placement.fleet.strategy
    classes = selected.placement.fleet.pipelines
    shares = selected.positions or deal(batch, selected.placement)
    pipelines = []
    in_order = placed or _place_in_order(strategy)
    for scheme, pipeline_class, micro_batches, (ranks, slowdown) in zip(
        strategy, classes, shares, in_order, strict=True
    ):
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
                slowdown=slowdown,
                shapes=shapes,
            )
        )
    predicted = max(pipeline.predicted_ms for pipeline in pipelines)
    bound = min(floor_us(max(selected.lower_bound_ms, layout_bound_ms or 0.0)), predicted)
    candidates = list_candidates(selected.considered, strategy, predicted, bound)
    plan = plan_of(
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
    return replace(plan, shapes=shapes) if shapes else plan


def _place_in_order(strategy: Strategy) -> list[tuple[tuple[int, ...], float]]:
    placed, first = [], 0
    for scheme in strategy:
        placed.append((tuple(range(first, first + scheme.gpus)), 1.0))
        first += scheme.gpus
    return placed


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


def deal(batch: Batch, placement: Placement) -> list[list[list[int]]]:
    """Deal positions in the batch to pipelines and micro-batches, as bins only count lengths."""
    pools = [iter(positions) for positions in batch.positions]

    def micro(bin_: Bin) -> list[int]:
        return [next(pools[i]) for i, n in bin_ for _ in range(n)]

    return [
        [micro(bin_) for bin_ in pipeline]
        for pipelines in placement.filling.bins
        for pipeline in pipelines
    ]


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
